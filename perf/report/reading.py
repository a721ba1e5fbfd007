"""Conclusions drawn from the numbers by rule; the same rules apply to RbFly and its peers.

Two lanes differ if the 95 % interval of the ratio of their medians excludes 1.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..stats import Interval
from .model import Kind, Lane, Report
from .rst import code, plain

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

# from this fraction of the floor on, broker and network are the limit, not the client
NEAR = 0.9
# with fewer rounds or a higher load per CPU, a run only gives an impression
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
    Target('rbfly-single', 'bare-uvloop-single', 0.97, 1.25),
    Target('rbfly-batch', 'bare-uvloop-batch', 0.97, 1.5),
    Target('rbfly-window', 'raw-socket-window', 0.9),
    Target('rbfly-tasks-100', 'bare-uvloop-tasks-100', 0.75),
    Target('rbfly-batches-consume', 'raw-socket-consume', 0.85),
    Target('rbfly-encode-into-seed', 'msgspec-encode-seed', 0.8),
    Target('rbfly-decode-seed', 'msgspec-decode-seed', 0.8),
)


def verdict(interval: Interval | None, target: float, most: bool = False) -> str:
    """Whether a target is reached: by the whole interval, by part of it, or not at all.

    :param most: the target is a maximum.
    """
    if interval is None:
        return 'cannot be told'
    sure, reached = (
        (interval.high <= target, interval.low <= target)
        if most
        else (interval.low >= target, interval.high >= target)
    )
    return 'reached' if sure else 'reached within the interval' if reached else 'not reached'


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
    if not kind.floor:
        return ''
    share = lane.ratio(floor) if floor else None
    if share is None:
        return (
            f'The floor lane {code(f"{kind.floor}-{kind.name}")} has no result, so it cannot be'
            ' told whether the client or the broker is the limit.'
        )
    if share.low > 1:
        return (
            f'{name} is faster than its floor by more than the interval, {scale(share)} its rate.'
            ' That cannot be: something is counted wrongly, and the rest is to be read with care.'
        )
    text = f'{name} reaches {scale(share)} the rate of the floor, the same frames without a client'
    if share.low >= NEAR:
        return (
            f'{text}: the broker and the round trips to it are the limit, and no client could be'
            ' much faster here.'
        )
    if share.high < NEAR:
        return f'{text}: the client costs the rest.'
    return f'{text}; the interval is too wide to tell whether client or broker is the limit.'


def compare_with_peer(lane: Lane, peer: Lane) -> str:
    """Say which of two lanes is ahead, in rate and CPU."""
    ours, theirs = plain(lane.title), plain(peer.title)
    rate, cpu = lane.ratio(peer), lane.ratio(peer, 'cpu_per_message')
    if rate is None:
        return ''
    if rate.low > 1:
        text = f'{ours} is ahead of {theirs}: {scale(rate)} its rate'
    elif rate.high < 1:
        text = f'**{theirs} is ahead** of {ours}, which has {scale(rate)} its rate'
    else:
        text = f'{ours} and {theirs} cannot be told apart: the ratio of rates is {ratio(rate)}'
    if cpu is not None:
        if cpu.high < 1:
            text += f'; {ours} takes less CPU per message ({scale(cpu)})'
        elif cpu.low > 1:
            text += f'; **{ours} takes more CPU** per message ({scale(cpu)})'
        else:
            text += f'; their CPU per message cannot be told apart ({ratio(cpu)})'
    if peer.is_reference:
        text += '; the reference is of another format, and no peer'
    if lane.broker != peer.broker:
        text += '; the brokers are different ones, and this compares client and broker together'
    return text + '.'


def of_kind(report: Report, kind: Kind) -> Iterator[str]:
    lanes = report.of_kind(kind.name)
    floor = next((lane for lane in lanes if lane.library == kind.floor), None)
    ours = [lane for lane in lanes if lane.is_ours]
    for lane in ours:
        if text := compare_with_floor(lane, kind, floor):
            yield text
        for peer in lanes:
            if not peer.is_ours and not peer.is_floor and (text := compare_with_peer(lane, peer)):
                yield text
    for lane in ours[1:]:
        if text := compare_with_peer(ours[0], lane):
            yield text
    if not ours:
        yield 'This client has no result here.'
    elif kind.floor and not any(lane.is_peer for lane in lanes):
        yield 'No peer has a result here.'


def in_short(report: Report, kind: Kind) -> str:
    """RbFly's rate, and its ratios to everything it is compared with."""
    lanes = report.of_kind(kind.name)
    ours = next((lane for lane in lanes if lane.is_ours), None)
    if not ours:
        return f'**{kind.scenario}, {kind.name}**: this client has no result.'
    parts = [
        f'**{kind.scenario}, {kind.name}**: {plain(ours.title)} {ours.rate.value:,.0f} messages/s'
    ]
    for lane in lanes:
        interval = ours.ratio(lane)
        if lane is not ours and (lane.library == kind.floor or not lane.is_floor) and interval:
            parts.append(f'{scale(interval)} {plain(lane.title)}')
    return f'{"; ".join(parts)}.'


def ahead(report: Report, kinds: Iterable[Kind]) -> str:
    """Where others are ahead of RbFly."""
    ahead_in: dict[str, list[str]] = {}
    for kind in kinds:
        lanes = report.of_kind(kind.name)
        ours = next((lane for lane in lanes if lane.is_ours), None)
        for lane in lanes:
            if ours and not lane.is_ours and not lane.is_floor:
                rate = ours.ratio(lane)
                if rate and rate.high < 1:
                    ahead_in.setdefault(lane.title, []).append(kind.name)
    if not ahead_in:
        return 'No library is ahead of this client in rate in any kind of work measured here.'
    texts = (
        f'{plain(title)} in {", ".join(map(code, names))}' for title, names in ahead_in.items()
    )
    return f'Ahead of this client in rate: {"; ".join(texts)}.'


def reading(report: Report, kind: Kind) -> list[str]:
    """Conclusions for a kind of work, as markup."""
    return list(of_kind(report, kind))


def cautions(report: Report) -> Iterator[str]:
    """What limits the significance of the numbers, as markup."""
    for run in report.runs:
        name = code(run.label)
        about = run.environment
        if run.rounds < ROUNDS:
            yield (
                f'{name} has {run.rounds} rounds, fewer than {ROUNDS}: its intervals are an'
                ' impression only.'
            )
        fewer = [
            lane.name for lane in run.lanes.values() if lane.rounds < run.results.rounds(lane.name)
        ]
        if fewer:
            yield (
                f'{name} was ended before its last round; these lanes have fewer rounds than the'
                f' {run.rounds} that were asked for: {", ".join(map(code, fewer))}.'
            )
        load, cpus = about.get('load'), about.get('cpus')
        if load and cpus and load[0] > LOAD * cpus:
            yield (
                f'The machine was not idle when {name} was begun: its load was {load[0]:.2f} on'
                f' {cpus} CPUs. Lanes are interleaved, so ratios suffer less than rates.'
            )
        if str(about.get('revision') or '').endswith('+'):
            yield f'Files of the checkout were changed since the commit that {name} names.'
    if len(report.runs) > 1:
        yield 'Ratios are of lanes in the same result file only.'
