"""Result files: JSON lines, starting with a header; each result is appended at once.

    {"type": "header", "format": 2, "environment": {...}, "settings": {...}, "left_out": [...]}
    {"type": "result", "lane": ..., "round": ..., "count": ..., "seconds": ..., "cpu_user": ...,
     "cpu_sys": ..., "max_rss": ..., "broker_cpu": ..., "sent": ..., "received": ...}
    {"type": "failure", "lane": ..., "round": ..., "error": ...}
    {"type": "filled", "kind": ..., "count": ..., "chunks": ...}
    {"type": "resumed", "environment": {...}}

An interrupted run may leave an incomplete last line, which is ignored.  The file of a complete run
is compressed, and its name then ends with `.xz`; the last result of a lane has the latencies of all
its rounds.
"""

import json
import lzma
import os
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from . import CommandError, cost, lanes
from .histogram import Histogram
from .stats import Interval, ratio_interval

FORMAT = 2
PACKED = '.xz'


@dataclass(frozen=True)
class Settings:
    """The settings of a run, which stay the same when it is resumed.

    :ivar counts: messages per round, by kind of work.
    :ivar lanes: names of the lanes, in the order of :data:`perf.lanes.LANES`.
    :ivar pinned: whether brokers and lanes run on separate processors.
    :ivar when_idle: whether each round waits until other programs leave the processors idle.
    """

    rounds: int
    seed: int
    counts: dict[str, int]
    lanes: list[str]
    pinned: bool = False
    when_idle: bool = False


@dataclass
class Results:
    """The contents of a result file."""

    path: Path
    header: dict[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)
    resumed: list[dict[str, Any]] = field(default_factory=list)

    @property
    def settings(self) -> Settings:
        return Settings(**self.header['settings'])

    def add(self, record: dict[str, Any]) -> None:
        """Add a line of the file."""
        if record['type'] == 'result':
            cpu = (record['cpu_user'] + record['cpu_sys']) / record['count']
            per_message = {'rate': record['count'] / record['seconds'], 'cpu_per_message': cpu}
            for name in cost.COLUMNS:
                if name in record:
                    per_message[f'{name}_per_message'] = record[name] / record['count']
            self.rows.append(record | per_message)
        elif record['type'] == 'failure':
            self.failures.append(record)
        elif record['type'] == 'resumed':
            self.resumed.append(record['environment'])

    def done(self) -> set[tuple[str, int]]:
        """The lanes and rounds that have a result."""
        return {(row['lane'], row['round']) for row in self.rows}

    def failed(self) -> dict[str, str]:
        """Failed lanes and their errors, except those whose rounds were all completed later."""
        return {
            f['lane']: f'round {f["round"]}: {f["error"]}' if f['round'] else f['error']
            for f in self.failures
            if len(self.column(f['lane'], 'round')) < self.rounds(f['lane'])
        }

    def rounds(self, lane: str) -> int:
        """The number of rounds that a lane takes part in."""
        rounds = self.settings.rounds
        return lanes.find(lane).kind.part_of(rounds) if lane in lanes.LANES else rounds

    def column(self, lane: str, name: str) -> dict[int, float]:
        """The values of a lane, by round."""
        return {row['round']: row[name] for row in self.rows if row['lane'] == lane and name in row}

    def ratio(self, lane: str, other: str, name: str) -> Interval | None:
        """The ratio of two lanes' medians, over the rounds that both have.

        None if there are no such rounds, or the other lane has only zeros.
        """
        over, under = self.column(lane, name), self.column(other, name)
        both = sorted(over.keys() & under.keys())
        try:
            return ratio_interval(
                [over[i] for i in both], [under[i] for i in both], self.settings.seed, paired=True
            )
        except (ValueError, ArithmeticError):
            return None


class Writer:
    """Appends records to a result file and to its contents in memory."""

    def __init__(self, results: Results) -> None:
        self.results = results
        self.file = open(results.path, 'a', encoding='utf-8')  # noqa: SIM115, see close()

    @classmethod
    def create(cls, path: Path, header: dict[str, Any]) -> Self:
        """Create a file.

        :raises CommandError: it exists.
        """
        path.parent.mkdir(parents=True, exist_ok=True)
        path = path.with_name(path.name.removesuffix(PACKED))
        for existing in (path, packed(path)):
            if existing.exists() and existing.stat().st_size:
                raise CommandError(f'{existing} exists; use --resume to continue it')
        record = {'type': 'header', 'format': FORMAT, **header}
        writer = cls(Results(path, record))
        writer.write(record)
        return writer

    @classmethod
    def resume(cls, results: Results) -> Self:
        """Continue a file after its last complete line."""
        if results.path.suffix == PACKED:
            path = results.path.with_suffix('')
            path.write_bytes(lzma.decompress(results.path.read_bytes()))
            results.path.unlink()
            results.path = path
        with open(results.path, 'rb+') as file:
            file.truncate(file.read().rfind(b'\n') + 1)
        return cls(results)

    def write(self, record: dict[str, Any]) -> None:
        """Append a record and sync it to disk."""
        self.file.write(dumped(record) + '\n')
        self.file.flush()
        os.fsync(self.file.fileno())
        self.results.add(record)

    def close(self) -> None:
        self.file.close()

    def pack(self) -> None:
        """Close and compress the file of a complete run."""
        self.close()
        plain, incomplete = self.results.path, self.results.path.with_suffix('.part')
        text = '\n'.join([*compact(plain.read_text().splitlines()), ''])
        incomplete.write_bytes(lzma.compress(text.encode(), preset=9 | lzma.PRESET_EXTREME))
        self.results.path = incomplete.replace(packed(plain))
        plain.unlink()


def dumped(record: dict[str, Any]) -> str:
    return json.dumps(record, separators=(',', ':'))


def compact(lines: Sequence[str]) -> Iterator[str]:
    """Sort results, and merge the latencies of a lane into its last one: both save space."""
    records = [json.loads(line) for line in lines]
    last = {record['lane']: record for record in records if 'histograms' in record}
    found: defaultdict[tuple[str, str], Histogram] = defaultdict(Histogram)
    for record in records:
        for name, counts in record.pop('histograms', {}).items():
            found[record['lane'], name].merge(Histogram.load(counts))
    for (lane, name), histogram in found.items():
        last[lane].setdefault('histograms', {})[name] = histogram.dump()
    records.sort(key=lambda r: (r['type'] == 'result', r.get('lane', ''), r.get('round', 0)))
    yield from map(dumped, records)


def packed(path: Path) -> Path:
    return path.with_name(path.name + PACKED)


def read(path: Path) -> Results:
    """Read a result file."""
    try:
        data = path.read_bytes()
        if path.suffix == PACKED:
            data = lzma.decompress(data)
        *lines, _ = data.decode().split('\n')
        records = [json.loads(line) for line in lines]
    except OSError as ex:
        raise CommandError(f'cannot read {path}: {ex.strerror}') from None
    except lzma.LZMAError:
        raise CommandError(f'{path} is not a result file: not compressed with xz') from None
    except ValueError:
        raise CommandError(f'{path} is not a result file: not JSON lines') from None
    first = records[0] if records and isinstance(records[0], dict) else {}
    if first.get('type') != 'header':
        raise CommandError(f'{path} is not a result file: it has no header')
    if first.get('format') != FORMAT:
        raise CommandError(
            f'{path} has format {first.get("format")}, but this program reads format {FORMAT}'
        )
    results = Results(path, first)
    for record in records[1:]:
        results.add(record)
    return results
