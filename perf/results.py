"""Result files: JSON lines, a header first, then a line per lane and round, appended as they come.

    {"type": "header", "format": 1, "environment": {...}, "settings": {...}, "scenarios": {...},
     "kinds": {...}, "lanes": [...], "left_out": [...]}
    {"type": "result", "scenario": ..., "lane": ..., "round": ..., "order": ..., "count": ...,
     "seconds": ..., "rate": ..., "cpu_user": ..., "cpu_sys": ..., "cpu_per_message": ...,
     "max_rss": ..., "stored": ...}
    {"type": "failure", "lane": ..., "round": ..., "error": ...}
    {"type": "filled", "scenario": ..., "count": ..., "chunks": ...}
    {"type": "resumed", "environment": {...}}

A run that is interrupted may leave half a line at the end; it is dropped.
"""

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from . import lanes

__all__ = ['Results', 'ResultsError', 'Settings', 'Writer', 'read']

FORMAT = 1


class ResultsError(Exception):
    """A file that is not a result file, or not one of this run."""


@dataclass(frozen=True)
class Settings:
    """What makes two runs the same run.

    :ivar counts: messages per round by kind.
    :ivar lanes: names of the lanes, in the order of the table.
    """

    rounds: int
    seed: int
    counts: dict[str, int]
    lanes: list[str]

    @classmethod
    def load(cls, data: dict[str, Any]) -> Self:
        return cls(data['rounds'], data['seed'], data['counts'], data['lanes'])

    def dump(self) -> dict[str, Any]:
        return asdict(self)


@dataclass
class Results:
    """What is in a result file."""

    path: Path
    header: dict[str, Any]
    rows: list[dict[str, Any]] = field(default_factory=list)
    failures: list[dict[str, Any]] = field(default_factory=list)
    resumed: list[dict[str, Any]] = field(default_factory=list)

    @property
    def settings(self) -> Settings:
        return Settings.load(self.header['settings'])

    def add(self, record: dict[str, Any]) -> None:
        """Take a line of the file."""
        if record['type'] == 'result':
            self.rows.append(record)
        elif record['type'] == 'failure':
            self.failures.append(record)
        elif record['type'] == 'resumed':
            self.resumed.append(record['environment'])

    def done(self) -> set[tuple[str, int]]:
        """Lanes and rounds that have a result."""
        return {(row['lane'], row['round']) for row in self.rows}

    def failed(self) -> dict[str, str]:
        """Lanes that failed, with the reason, unless every round was made good later."""
        return {
            f['lane']: f'round {f["round"]}: {f["error"]}' if f['round'] else f['error']
            for f in self.failures
            if len(self.column(f['lane'], 'round')) < self.rounds(f['lane'])
        }

    def rounds(self, lane: str) -> int:
        """In how many rounds a lane takes part."""
        name = next((item['kind'] for item in self.header['lanes'] if item['lane'] == lane), '')
        about = self.header.get('kinds', {}).get(name, {})
        # the first file with such kinds does not say how many these have
        most = about.get('rounds', lanes.KINDS[name].rounds if name in lanes.KINDS else 0)
        return min(self.settings.rounds, most or self.settings.rounds)

    def column(self, lane: str, name: str) -> dict[int, float]:
        """Values of a lane by round, of those rounds that have one."""
        return {row['round']: row[name] for row in self.rows if row['lane'] == lane and name in row}


class Writer:
    """Appends records to a result file and keeps them."""

    def __init__(self, results: Results) -> None:
        self.results = results
        self.file = open(results.path, 'a', encoding='utf-8')  # noqa: SIM115, see close()

    @classmethod
    def create(cls, path: Path, header: dict[str, Any]) -> Self:
        """Begin a file; it must not be there yet."""
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and path.stat().st_size:
            raise ResultsError(f'{path} is there already; --resume goes on with it')
        record = {'type': 'header', 'format': FORMAT, **header}
        writer = cls(Results(path, record))
        writer.write(record)
        return writer

    @classmethod
    def resume(cls, results: Results) -> Self:
        """Go on with a file, behind its last whole line."""
        with open(results.path, 'rb+') as file:
            file.truncate(file.read().rfind(b'\n') + 1)
        return cls(results)

    def write(self, record: dict[str, Any]) -> None:
        """Append a record; it is in the file when this returns."""
        self.file.write(json.dumps(record) + '\n')
        self.file.flush()
        os.fsync(self.file.fileno())
        self.results.add(record)

    def close(self) -> None:
        self.file.close()


def read(path: Path) -> Results:
    """Read a result file."""
    try:
        *lines, _ = path.read_text(encoding='utf-8').split('\n')
        records = [json.loads(line) for line in lines]
    except OSError as ex:
        raise ResultsError(f'cannot read {path}: {ex.strerror}') from None
    except ValueError:
        raise ResultsError(f'{path} is not a result file: not JSON lines') from None
    first = records[0] if records and isinstance(records[0], dict) else {}
    if first.get('type') != 'header':
        raise ResultsError(f'{path} is not a result file: it has no header')
    if first.get('format') != FORMAT:
        raise ResultsError(f'{path} has format {first.get("format")}; this program reads {FORMAT}')
    results = Results(path, first)
    for record in records[1:]:
        results.add(record)
    return results
