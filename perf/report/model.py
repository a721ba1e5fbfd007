"""The contents of result files, as lanes with results."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import Any, Self

from .. import CommandError, environment, lanes
from ..histogram import Histogram
from ..lanes import LIBRARIES, REFERENCES, Kind, Scenario
from ..results import Results, read
from ..stats import Interval, median_interval

OURS = 'rbfly'


def rank(library: str) -> int:
    """Position of a library in the report."""
    return list(LIBRARIES).index(library)


@dataclass(frozen=True)
class Lane(lanes.Lane):
    """A lane with results."""

    run: 'Run'

    @property
    def is_ours(self) -> bool:
        return self.library.name.split('-')[0] == OURS

    @property
    def is_peer(self) -> bool:
        return not (self.is_ours or self.library.is_floor or self.library.name in REFERENCES)

    def values(self, column: str) -> list[float]:
        return list(self.run.results.column(self.name, column).values())

    @property
    def rounds(self) -> int:
        return len(self.values('rate'))

    @cached_property
    def rate(self) -> Interval:
        """Messages per second."""
        return median_interval(self.values('rate'), self.run.settings.seed)

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
            if row['lane'] == self.name and 'histograms' in row:
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
    """A result file; lanes that no longer exist are ignored.

    :ivar kinds: requested kinds of work.
    :ivar measured: lanes with results that did not fail, in report order.
    :ivar lanes: those of them that no later run has measured again.
    :ivar absent: requested lanes without results, with the reason.
    """

    def __init__(self, results: Results) -> None:
        self.results = results
        self.settings = results.settings
        self.environment: dict[str, Any] = results.header['environment']
        self.ratios: dict[tuple[str, str, str], Interval | None] = {}
        counts = self.settings.counts
        self.kinds = {name: kind for name, kind in lanes.KINDS.items() if name in counts}
        left_out = results.header['left_out']
        self.absent = {item['lane']: f'left out: {item["reason"]}' for item in left_out}
        failed = results.failed()
        measured = {row['lane'] for row in results.rows}
        found = []
        for name in self.settings.lanes:
            if name in failed:
                self.absent[name] = f'failed: {failed[name]}'
            elif name not in measured:
                self.absent[name] = 'the run ended before its first round'
            elif name in lanes.LANES:
                lane = lanes.find(name)
                found.append(Lane(lane.use, lane.kind, self))
        found.sort(key=lambda lane: rank(lane.library.name))
        self.measured = {lane.name: lane for lane in found}
        self.lanes = dict(self.measured)

    @property
    def label(self) -> str:
        """Path of the file relative to the checkout; only its name if it is elsewhere."""
        path = self.results.path.resolve()
        folder = environment.folder()
        return str(path.relative_to(folder)) if path.is_relative_to(folder) else path.name

    @property
    def groups(self) -> set[tuple[str, bool]]:
        """The kinds of work that it has, by lanes that poll, and by lanes that do not."""
        left = {*self.lanes, *self.absent}
        known = [lanes.find(name) for name in self.settings.lanes if name in lanes.LANES]
        return {(lane.kind.name, lane.polls) for lane in known if lane.name in left}

    def drop(self, group: tuple[str, bool]) -> None:
        """Leave out lanes whose kind of work another run has measured again."""

        def is_kept(name: str) -> bool:
            lane = lanes.LANES.get(name)
            return lane is None or (lane.kind.name, lane.polls) != group

        self.lanes = {name: lane for name, lane in self.lanes.items() if is_kept(name)}
        self.absent = {name: why for name, why in self.absent.items() if is_kept(name)}
        if group[0] not in {kind for kind, _ in self.groups}:
            self.kinds.pop(group[0], None)


@dataclass(frozen=True)
class Report:
    """All result files of a report."""

    runs: tuple[Run, ...]

    @classmethod
    def read(cls, paths: Sequence[Path]) -> Self:
        runs = tuple(Run(read(path)) for path in paths)
        latest: dict[tuple[str, bool], Run] = {}
        for run in sorted(runs, key=lambda run: str(run.environment['time'])):
            for group in run.groups:
                if group in latest:
                    latest[group].drop(group)
                latest[group] = run
        if not any(run.lanes for run in runs):
            raise CommandError('no lane has results')
        return cls(runs)

    @property
    def scenarios(self) -> dict[str, Scenario]:
        """The measured scenarios."""
        used = {kind.scenario for kind in self.kinds()}
        return {name: about for name, about in lanes.SCENARIOS.items() if name in used}

    def kinds(self, scenario: str = '') -> list[Kind]:
        names = {name for run in self.runs for name in run.kinds}
        kinds = [kind for name, kind in lanes.KINDS.items() if name in names]
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
        found = {k: v for run in self.runs for k, v in run.absent.items() if k.endswith(ends)}
        return {name: why for name, why in found.items() if self.lane(name) is None}

    def all_lanes(self) -> Iterator[Lane]:
        for run in self.runs:
            yield from run.lanes.values()

    def lane(self, name: str) -> Lane | None:
        return next((run.lanes[name] for run in self.runs if name in run.lanes), None)

    def of_kind(self, kind: str) -> list[Lane]:
        found = [lane for lane in self.all_lanes() if lane.kind.name == kind]
        return sorted(found, key=lambda lane: rank(lane.library.name))

    def ours(self, kind: str, polls: bool = False) -> Lane | None:
        """The first of RbFly's lanes of a kind of work."""
        found = [lane for lane in self.of_kind(kind) if lane.is_ours and lane.polls == polls]
        return found[0] if found else None
