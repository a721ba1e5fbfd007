"""The contents of result files.

The wording comes from :mod:`perf.lanes` if it still knows the scenario, kind of work or lane,
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
from ..lanes import POLLING, Scenario
from ..results import Results, read
from ..stats import Interval, median_interval

OURS = 'rbfly'


class ReportError(Exception):
    """No report can be created from the result files."""


def rank(library: str) -> int:
    """Position of a library in the report; unknown libraries come last."""
    known = list(lanes.LIBRARIES)
    return known.index(library) if library in known else len(known)


def title(library: str) -> str:
    return lanes.LIBRARIES[library].title if library in lanes.LIBRARIES else library


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
    rounds: int
    series: str
    at: int
    body: int


@dataclass(frozen=True)
class Lane:
    """A lane with results."""

    run: 'Run'
    name: str
    kind: str
    library: str
    loop: str
    how: str

    @property
    def title(self) -> str:
        return title(self.library)

    @property
    def is_ours(self) -> bool:
        return self.library.split('-')[0] == OURS

    @property
    def polls(self) -> bool:
        """Whether it polls while it waits, so that it is compared only with lanes that do."""
        return self.library.endswith(POLLING)

    @property
    def is_floor(self) -> bool:
        return self.library in lanes.LIBRARIES and lanes.LIBRARIES[self.library].is_floor

    @property
    def is_peer(self) -> bool:
        return not (self.is_ours or self.is_floor or self.library in lanes.REFERENCES)

    def values(self, column: str) -> list[float]:
        return list(self.run.results.column(self.name, column).values())

    @property
    def rounds(self) -> int:
        return len(self.values('rate'))

    @cached_property
    def rate(self) -> Interval:
        """Messages per second."""
        return median_interval(self.values('rate'), self.run.seed)

    @property
    def cpu(self) -> float:
        """CPU time per message in microseconds."""
        return median(self.values('cpu_per_message')) * 1e6

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
        self.scenarios: dict[str, Scenario] = {
            name: lanes.SCENARIOS.get(name, Scenario(name, about))
            for name, about in header['scenarios'].items()
        }
        self.kinds = {}
        for name, about in header['kinds'].items():
            wording = {'title': lanes.KINDS[name].title} if name in lanes.KINDS else {}
            count = results.settings.counts[name]
            self.kinds[name] = Kind(name=name, count=count, **about | wording)
        failed = results.failed()
        measured = {row['lane'] for row in results.rows}
        self.absent = {item['lane']: f'left out: {item["reason"]}' for item in header['left_out']}
        found = []
        for about in header['lanes']:
            name = about['lane']
            if name in failed:
                self.absent[name] = f'failed: {failed[name]}'
            elif name in measured:
                how = lanes.LANES[name].use.how if name in lanes.LANES else about['how']
                found.append(Lane(self, name, about['kind'], about['library'], about['loop'], how))
            else:
                self.absent[name] = 'the run ended before its first round'
        found.sort(key=lambda lane: rank(lane.library))
        self.lanes = {lane.name: lane for lane in found}

    @property
    def label(self) -> str:
        """Path of the file relative to the checkout; only its name if it is elsewhere."""
        path = self.results.path.resolve()
        folder = environment.folder()
        return str(path.relative_to(folder)) if path.is_relative_to(folder) else path.name

    def drop(self, kind: str) -> None:
        """Leave out a kind of work that another run has measured again."""
        del self.kinds[kind]
        self.lanes = {name: lane for name, lane in self.lanes.items() if lane.kind != kind}
        self.absent = {k: v for k, v in self.absent.items() if not k.endswith(f'-{kind}')}


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
    def scenarios(self) -> dict[str, Scenario]:
        """The measured scenarios, in the order of :data:`perf.lanes.SCENARIOS`."""
        used = {kind.scenario for kind in self.kinds()}
        found = {name: about for run in self.runs for name, about in run.scenarios.items()}
        return {name: found[name] for name in (lanes.SCENARIOS | found) if name in used}

    def kinds(self, scenario: str = '') -> list[Kind]:
        kinds = [kind for run in self.runs for kind in run.kinds.values()]
        return [kind for kind in kinds if not scenario or kind.scenario == scenario]

    def series(self, scenario: str) -> dict[str, list[Kind]]:
        """The kinds of work of a scenario that have results, by series."""
        series: dict[str, list[Kind]] = {}
        for kind in self.kinds(scenario):
            if self.of_kind(kind.name):
                series.setdefault(kind.series, []).append(kind)
        return series

    def absent(self, scenario: str) -> dict[str, str]:
        """Requested lanes of a scenario without results, with the reason."""
        ends = tuple(f'-{kind.name}' for kind in self.kinds(scenario))
        return {k: v for run in self.runs for k, v in run.absent.items() if k.endswith(ends)}

    def all_lanes(self) -> Iterator[Lane]:
        for run in self.runs:
            yield from run.lanes.values()

    def lane(self, name: str) -> Lane | None:
        return next((run.lanes[name] for run in self.runs if name in run.lanes), None)

    def of_kind(self, kind: str) -> list[Lane]:
        return [lane for lane in self.all_lanes() if lane.kind == kind]

    def ours(self, kind: str, polls: bool = False) -> Lane | None:
        """The first of RbFly's lanes of a kind of work."""
        found = [lane for lane in self.of_kind(kind) if lane.is_ours and lane.polls == polls]
        return found[0] if found else None
