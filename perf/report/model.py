"""The contents of result files.

The wording of a scenario, kind of work or lane comes from :mod:`perf.lanes` if it is still there,
otherwise from the file; every number comes from the file.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any, Self

from .. import environment, lanes
from ..histogram import Histogram
from ..lanes import POLLING
from ..results import Results, read
from ..stats import Interval, median_interval

__all__ = ['FLOORS', 'OURS', 'TITLES', 'Kind', 'Lane', 'Report', 'ReportError', 'Run', 'rank']

OURS = 'rbfly'

# library names in the report, in order of appearance; floors and lanes that poll come last
TITLES = {
    'rbfly': 'RbFly',
    'rbfly-amqp': 'RbFly (AMQP)',
    'rbfly-raw': 'RbFly (raw bytes)',
    'rbfly-batches': 'RbFly (batches)',
    'rbfly-messages': 'RbFly (messages)',
    'rstream': 'rstream',
    'proton': 'Qpid Proton',
    'aiokafka': 'aiokafka (Kafka)',
    'pika': 'pika (AMQP 0.9.1)',
    'aio-pika': 'aio-pika (AMQP 0.9.1)',
    'go': 'Go client',
    'java': 'Java client',
    'msgspec': 'msgspec (MessagePack)',
    'bare-uvloop': 'asyncio protocol (floor)',
    'raw-socket': 'blocking socket (floor)',
    'rbfly-polling': 'RbFly (busy polling)',
    'bare-uvloop-polling': 'polling asyncio protocol (floor)',
    'raw-socket-polling': 'polling socket (floor)',
}
FLOORS = ('bare-uvloop', 'raw-socket', 'bare-uvloop-polling', 'raw-socket-polling')
REFERENCES = ('msgspec',)


class ReportError(Exception):
    """No report can be created from the result files."""


@dataclass(frozen=True)
class Kind:
    """A kind of work, as described in the header of a result file.

    :ivar count: messages per round in this run.
    :ivar full: messages per round with `--full`.
    :ivar rounds: maximum number of rounds it takes part in; 0 for all.
    :ivar series: in a study, the work that is done for several values of `at`; otherwise empty.
    :ivar at: the value that the study varies.
    :ivar body: body size in bytes.
    """

    name: str
    scenario: str
    title: str
    size: int
    full: int
    warm_up: int
    floor: str
    count: int
    rounds: int = 0
    series: str = ''
    at: int = 0
    body: int = 10


@dataclass(frozen=True)
class Lane:
    """A lane with results."""

    run: 'Run'
    name: str
    kind: str
    library: str
    broker: str
    loop: str
    how: str

    @property
    def title(self) -> str:
        return TITLES.get(self.library, self.library)

    @property
    def is_ours(self) -> bool:
        return self.library.split('-')[0] == OURS

    @property
    def polls(self) -> bool:
        """Whether it polls while it waits, so that it is compared neither with peers nor with
        floors that sleep."""
        return self.library.endswith(POLLING)

    @property
    def is_floor(self) -> bool:
        return self.library in FLOORS

    @property
    def is_reference(self) -> bool:
        return self.library in REFERENCES

    @property
    def is_peer(self) -> bool:
        return not self.is_ours and not self.is_floor and not self.is_reference

    def values(self, column: str) -> list[float]:
        return list(self.run.results.column(self.name, column).values())

    @property
    def rounds(self) -> int:
        return len(self.values('rate'))

    @cached_property
    def rate(self) -> Interval:
        """Messages per second."""
        return median_interval(self.values('rate'), self.run.seed)

    @cached_property
    def cpu(self) -> Interval:
        """CPU time per message in microseconds."""
        return median_interval([x * 1e6 for x in self.values('cpu_per_message')], self.run.seed)

    @property
    def memory(self) -> float:
        """Peak resident memory in MiB."""
        return median(self.values('max_rss')) / 2**20

    def histogram(self, name: str) -> Histogram:
        """Merged latencies of all rounds."""
        merged = Histogram()
        for row in self.run.results.rows:
            if row['lane'] == self.name:
                merged.merge(Histogram.load(row['histograms'][name]))
        return merged

    def ratio(self, other: 'Lane', column: str = 'rate') -> Interval | None:
        """Ratio of this lane's median to another's, over the rounds that both have.

        None if there are no such rounds, or the other lane has only zeros.
        """
        if self.run is not other.run:
            return None
        key = (self.name, other.name, column)
        if key not in self.run.ratios:
            self.run.ratios[key] = self.run.results.ratio(*key)
        return self.run.ratios[key]


def rank(library: str) -> int:
    """Position of a library in the report; unknown libraries come last."""
    return list(TITLES).index(library) if library in TITLES else len(TITLES)


def wording(kind: str) -> dict[str, str]:
    return {'title': lanes.KINDS[kind].title} if kind in lanes.KINDS else {}


class Run:
    """A result file.

    :ivar lanes: lanes with results that did not fail, in report order.
    :ivar absent: requested lanes without results, with the reason.
    """

    def __init__(self, results: Results) -> None:
        header = results.header
        if 'kinds' not in header:
            raise ReportError(f'{results.path}: its header does not describe the kinds of work')
        self.results = results
        self.ratios: dict[tuple[str, str, str], Interval | None] = {}
        self.environment: dict[str, Any] = header['environment']
        self.seed = results.settings.seed
        self.rounds = results.settings.rounds
        self.scenarios: dict[str, str] = {
            name: lanes.SCENARIOS.get(name, text) for name, text in header['scenarios'].items()
        }
        counts = results.settings.counts
        self.kinds = {
            name: Kind(name=name, count=counts[name], **about | wording(name))
            for name, about in header['kinds'].items()
        }
        failed = results.failed()
        measured = {row['lane'] for row in results.rows}
        self.absent: dict[str, str] = {
            item['lane']: f'left out: {item["reason"]}' for item in header['left_out']
        }
        measured_lanes = []
        for about in header['lanes']:
            name = about['lane']
            how = lanes.LANES[name].library.how if name in lanes.LANES else about['how']
            if name in failed:
                self.absent[name] = f'failed: {failed[name]}'
            elif name in measured:
                fields = {field: about[field] for field in ('kind', 'library', 'broker', 'loop')}
                measured_lanes.append(Lane(self, name, **fields, how=how))
            else:
                self.absent[name] = 'the run ended before its first round'
        measured_lanes.sort(key=lambda lane: rank(lane.library))
        self.lanes = {lane.name: lane for lane in measured_lanes}

    @property
    def label(self) -> str:
        """Path of the file relative to the checkout; only its name if it is elsewhere."""
        path = self.results.path.resolve()
        folder = environment.folder()
        return str(path.relative_to(folder)) if path.is_relative_to(folder) else path.name

    @property
    def environments(self) -> list[dict[str, Any]]:
        """Environments in which the run was started and resumed."""
        return [self.environment, *self.results.resumed]

    def drop(self, kind: str) -> None:
        """Leave out a kind of work that another run has measured again."""
        del self.kinds[kind]
        self.lanes = {name: lane for name, lane in self.lanes.items() if lane.kind != kind}
        for name in self.absent_of_kind(kind):
            del self.absent[name]

    def of_kind(self, kind: str) -> list[Lane]:
        return [lane for lane in self.lanes.values() if lane.kind == kind]

    def absent_of_kind(self, kind: str) -> dict[str, str]:
        return {name: why for name, why in self.absent.items() if name.endswith(f'-{kind}')}


@dataclass(frozen=True)
class Report:
    """All result files of a report."""

    runs: tuple[Run, ...]

    @classmethod
    def read(cls, paths: Sequence[Path]) -> Self:
        runs = tuple(Run(read(path)) for path in paths)
        latest: dict[str, Run] = {}
        for run in sorted(runs, key=lambda run: str(run.environment['time'])):
            for kind in run.kinds:
                if kind in latest:
                    latest[kind].drop(kind)
                latest[kind] = run
        if not any(run.lanes for run in runs):
            raise ReportError('no lane has results')
        return cls(runs)

    @property
    def scenarios(self) -> dict[str, str]:
        """Descriptions of the measured scenarios."""
        used = {kind.scenario for kind in self.kinds()}
        about = {name: text for run in self.runs for name, text in run.scenarios.items()}
        return {name: text for name, text in about.items() if name in used}

    def kinds(self, scenario: str = '') -> list[Kind]:
        kinds = [kind for run in self.runs for kind in run.kinds.values()]
        return [kind for kind in kinds if not scenario or kind.scenario == scenario]

    def kind(self, name: str) -> Kind:
        return next(kind for kind in self.kinds() if kind.name == name)

    def run_of(self, kind: str) -> Run | None:
        return next((run for run in self.runs if kind in run.kinds), None)

    def lane(self, name: str) -> Lane | None:
        return next((run.lanes[name] for run in self.runs if name in run.lanes), None)

    def of_study(self, scenario: str) -> dict[str, list[Kind]]:
        """The kinds of work of a study that have results, by series."""
        series: dict[str, list[Kind]] = {}
        for kind in self.kinds(scenario):
            if self.of_kind(kind.name):
                series.setdefault(kind.series, []).append(kind)
        return series

    def of_kind(self, kind: str) -> list[Lane]:
        run = self.run_of(kind)
        return run.of_kind(kind) if run else []

    def ours(self, kind: str) -> Lane | None:
        """The first of RbFly's lanes of a kind of work, not one that polls."""
        lanes = self.of_kind(kind)
        return next((lane for lane in lanes if lane.is_ours and not lane.polls), None)

    def floor(self, lane: Lane) -> Lane | None:
        """The floor of a lane; for one that polls, a floor that polls."""
        floor = self.kind(lane.kind).floor
        return self.lane(f'{floor}{POLLING if lane.polls else ""}-{lane.kind}')

    def absent(self, kinds: Sequence[Kind]) -> dict[str, str]:
        """Requested lanes of some kinds of work without results, with the reason."""
        runs = [(self.run_of(kind.name), kind.name) for kind in kinds]
        return {k: v for run, name in runs if run for k, v in run.absent_of_kind(name).items()}

    def all_lanes(self) -> Iterator[Lane]:
        for run in self.runs:
            yield from run.lanes.values()
