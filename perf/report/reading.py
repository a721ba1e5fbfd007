"""Conclusions drawn from the numbers by rule; the same rules apply to RbFly and its peers.

Two lanes differ if the 95 % interval of the ratio of their medians excludes 1.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..stats import Interval
from .model import Kind, Lane, Report
from .rst import capital, code, plain

__all__ = [
    'TARGETS',
    'Target',
    'ahead',
    'cautions',
    'in_short',
    'number',
    'ratio',
    'reading',
    'verdict',
]

# a client above this fraction of the floor's rate is limited by broker and network
NEAR = 0.9
# the page warns about runs with fewer rounds or a higher load per CPU
ROUNDS = 30
LOAD = 0.5


@dataclass(frozen=True)
class Target:
    """A performance goal of RbFly.

    :ivar rate: minimum ratio of rates.
    :ivar cpu: maximum ratio of CPU per message; 0 for none.
    """

    lane: str
    other: str
    rate: float
    cpu: float = 0


TARGETS = (
    Target('rbfly-single', 'bare-uvloop-single', 0.98, 1.15),
    Target('rbfly-batch', 'bare-uvloop-batch', 0.97, 1.35),
    Target('rbfly-window', 'raw-socket-window', 0.9),
    Target('rbfly-tasks-100', 'bare-uvloop-tasks-100', 0.75),
    Target('rbfly-super-tasks', 'raw-socket-super-tasks', 0.75),
    Target('rbfly-batches-consume', 'raw-socket-consume', 0.85),
    Target('rbfly-encode-into-seed', 'msgspec-encode-seed', 0.8),
    Target('rbfly-decode-seed', 'msgspec-decode-seed', 0.8),
    Target('rbfly-polling-single', 'bare-uvloop-polling-single', 0.9),
    Target('rbfly-polling-batch', 'bare-uvloop-polling-batch', 0.85),
    *(
        Target(f'rbfly-polling-{kind}', f'rbfly-{kind}', 0.97)
        for kind in ('window', 'tasks-100', 'tasks-1000', 'consume')
    ),
    *(
        Target(f'rbfly-polling-far-{kind}', f'rbfly-far-{kind}', 0.97, 1.1)
        for kind in ('each-1', 'each-5', 'each-20', 'batch-1', 'batch-5', 'batch-20')
    ),
)


def verdict(interval: Interval | None, target: float, most: bool = False) -> str:
    """Whether a target is reached: by the whole interval, by part of it, or not at all.

    :param most: the target is a maximum.
    """
    if interval is None:
        return 'unknown'
    sure, reached = (
        (interval.high <= target, interval.low <= target)
        if most
        else (interval.low >= target, interval.high >= target)
    )
    return 'reached' if sure else 'undecided' if reached else 'not reached'


def number(value: float) -> str:
    if value < 0.1:
        return f'{value:#.2g}' if value else '0'
    return f'{value:.2f}' if value < 10 else f'{value:,.0f}'


def ratio(interval: Interval | None) -> str:
    """Format a ratio and its interval."""
    if interval is None:
        return ''
    return f'{number(interval.value)} [{number(interval.low)}, {number(interval.high)}]'


def scale(interval: Interval) -> str:
    return f'{ratio(interval)} times'


def compare_with_floor(lane: Lane, kind: Kind, floor: Lane | None) -> str:
    """Say whether the client or the broker is the limit."""
    name = plain(lane.title)
    if not kind.floor or (lane.polls and not floor):
        return ''
    share = lane.ratio(floor) if floor else None
    if share is None:
        return (
            f'The floor lane {code(f"{kind.floor}-{kind.name}")} has no result, so this page cannot'
            ' say whether the client or the broker limits the rate.'
        )
    if share.low > 1:
        return (
            f'{name} is significantly faster than its floor ({scale(share)} its rate), which should'
            ' be impossible: suspect the measurement.'
        )
    text = f'{name} reaches {scale(share)} the rate of the floor'
    if share.low >= NEAR:
        return (
            f'{text}: the broker and the network limit the rate, and no client that'
            f' {"polls" if lane.polls else "sleeps"} while it waits could be much faster.'
        )
    if share.high < NEAR:
        return f'{text}: the rest is the cost of the client.'
    return f'{text}; the interval is too wide to tell whether client or broker limits the rate.'


def compare_with_peer(lane: Lane, peer: Lane) -> str:
    """Say which of two lanes is ahead, in rate and CPU."""
    ours, theirs = plain(lane.title), plain(peer.title)
    rate, cpu = lane.ratio(peer), lane.ratio(peer, 'cpu_per_message')
    if rate is None:
        return ''
    if rate.low > 1:
        text = f'{ours} is faster than {theirs}: {scale(rate)} its rate'
    elif rate.high < 1:
        text = f'**{theirs} is faster** than {ours}, which reaches {scale(rate)} its rate'
    else:
        text = f'{ours} and {theirs} do not differ significantly in rate (ratio {ratio(rate)})'
    if cpu is not None:
        if cpu.high < 1:
            text += f'; {ours} uses less CPU per message ({scale(cpu)})'
        elif cpu.low > 1:
            text += f'; **{ours} uses more CPU** per message ({scale(cpu)})'
        else:
            text += f'; CPU per message does not differ significantly (ratio {ratio(cpu)})'
    if peer.is_reference:
        text += f'; {theirs} writes a different format, so it is a reference and not a peer'
    if lane.broker != peer.broker:
        text += '; they use different brokers, so this compares client and broker together'
    return text + '.'


def reading(report: Report, kind: Kind) -> Iterator[str]:
    """Conclusions for a kind of work, as markup."""
    lanes = report.of_kind(kind.name)
    ours = [lane for lane in lanes if lane.is_ours]
    for lane in ours:
        if text := compare_with_floor(lane, kind, report.floor(lane)):
            yield text
        for peer in lanes:
            if peer.is_ours or peer.is_floor or lane.polls:
                continue
            if text := compare_with_peer(lane, peer):
                yield text
    for lane in ours[1:]:
        if text := compare_with_peer(ours[0], lane):
            yield text
    if not ours:
        yield 'RbFly has no result.'
    elif kind.floor and not any(lane.is_peer for lane in lanes):
        yield 'No peer has a result.'


def in_short(report: Report, kind: Kind) -> str:
    """RbFly's rate, and its ratios to the rates of other lanes."""
    name = f'**{capital(kind.title)}** ({code(kind.name)})'
    ours = report.ours(kind.name)
    if not ours:
        return f'{name}: RbFly has no result.'
    parts = [f'{name}: {plain(ours.title)} {ours.rate.value:,.0f} messages/s']
    for lane in report.of_kind(kind.name):
        interval = None if lane.polls else ours.ratio(lane)
        if lane is not ours and (lane.library == kind.floor or not lane.is_floor) and interval:
            parts.append(f'{ratio(interval)} × {plain(lane.title)}')
    return f'{"; ".join(parts)}.'


def ahead(report: Report, kinds: Iterable[Kind]) -> str:
    """The kinds of work in which other libraries are faster than RbFly."""
    ahead_in: dict[str, list[str]] = {}
    for kind in kinds:
        ours = report.ours(kind.name)
        for lane in report.of_kind(kind.name):
            rate = None if lane.is_ours or lane.is_floor or not ours else ours.ratio(lane)
            if rate and rate.high < 1:
                ahead_in.setdefault(lane.title, []).append(kind.name)
    if not ahead_in:
        return 'No other library is faster than RbFly in any kind of work measured here.'
    texts = (
        f'{plain(title)} in {", ".join(map(code, names))}' for title, names in ahead_in.items()
    )
    return f'Faster than RbFly: {"; ".join(texts)}.'


def cautions(report: Report) -> Iterator[str]:
    """What limits the significance of the numbers, as markup."""
    for run in report.runs:
        name = code(run.label)
        about = run.environment
        if run.rounds < ROUNDS:
            yield (
                f'{name} has {run.rounds} rounds, fewer than {ROUNDS}: its intervals are rough'
                ' estimates.'
            )
        fewer = [
            lane.name for lane in run.lanes.values() if lane.rounds < run.results.rounds(lane.name)
        ]
        if fewer:
            yield (
                f'{name} ended before its last round; these lanes have fewer than the requested'
                f' {run.rounds} rounds: {", ".join(map(code, fewer))}.'
            )
        load, cpus = about.get('load'), about.get('cpus')
        if load and cpus and load[0] > LOAD * cpus:
            yield (
                f'The machine was not idle when {name} was started: its load was {load[0]:.2f} on'
                f' {cpus} CPUs. Since the lanes alternate, this affects ratios less than rates.'
            )
        if str(about.get('revision') or '').endswith('+'):
            yield f'The checkout had uncommitted changes when {name} was started.'
    if len(report.runs) > 1:
        yield 'Only lanes of the same result file are compared.'
