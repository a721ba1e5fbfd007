"""
What every broker is, whatever its kind: shared, private or of others; found again, and ended.

Nothing here knows how a kind is started.
"""

from __future__ import annotations

import abc
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from .room import Room
from .state import BrokerError, Progress, locked, remove, run_folder


class Broker(abc.ABC):
    """A running broker, in a room or started by others."""

    kind: ClassVar[str]
    variable: ClassVar[str]  # of the environment: names one that others started
    versions: ClassVar[Sequence[str]]  # each has a shared one; the first if none is chosen
    version_variable: ClassVar[str | None] = None  # of the environment: chooses one of them

    def __init__(self, room: Room | None, progress: Progress | None) -> None:
        self._room = room
        self._progress = progress or Progress(quiet=True)
        self._private = False
        self._complete = False  # whether its start came to its end

    @property
    def external(self) -> bool:
        """Whether it is a broker that others started, named by an environment variable."""
        return self._room is None

    @abc.abstractmethod
    def variables(self) -> dict[str, str]:
        """The addresses as environment variables."""

    @abc.abstractmethod
    def alive(self) -> bool:
        """Whether it runs."""

    @property
    def release(self) -> str:
        """The whole of its version, as it tells it; empty if it does not."""
        return ''

    @abc.abstractmethod
    def start(self) -> None:
        """Start it, and wait until it is ready."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Stop it and remove its data; nothing is left."""

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def _end(self) -> None:
        """Kill it and remove its data."""
        self._in_room.kill()
        remove(self._in_room.folder)

    @property
    def _in_room(self) -> Room:
        if self._room is None:
            raise BrokerError(f'{self.variable} is not a broker that was started here')
        return self._room

    def _details(self) -> dict[str, Any]:
        """What `status` tells of one that was started here."""
        return {'running': self.alive(), 'logs': str(self._in_room.folder)}

    # --- found again ---

    @classmethod
    @abc.abstractmethod
    def named(cls, environ: Mapping[str, str] | None = None) -> Self | None:
        """The broker that an environment variable names, if it does."""

    @classmethod
    @abc.abstractmethod
    def load(cls, folder: Path, progress: Progress | None = None) -> Self | None:
        """The instance of this folder, if its state says that there is one."""

    @classmethod
    def chosen(cls, version: str | None = None) -> str:
        """This version, or the one that the environment names, or the first."""
        found = version or os.environ.get(cls.version_variable or '') or cls.versions[0]
        if found not in cls.versions:
            raise BrokerError(f'{cls.kind}: no version {found!r}, but {", ".join(cls.versions)}')
        return found

    @classmethod
    def shared(cls, version: str | None = None) -> str:
        """The name of the shared broker of this version."""
        return f'{cls.kind}-{cls.chosen(version)}'

    @classmethod
    def running(cls, version: str | None = None, progress: Progress | None = None) -> Self | None:
        """The shared broker that was started here, if it runs."""
        broker = cls.load(run_folder(cls.shared(version)), progress)
        if broker is None or not broker._complete or not broker._in_room.alive():
            return None
        return broker

    @classmethod
    def down(cls, version: str | None = None, progress: Progress | None = None) -> bool:
        """Stop the shared broker; `False` if there was none. One of others is never touched."""
        progress = progress or Progress()
        name = cls.shared(version)
        folder = run_folder(name)
        if not folder.exists():
            return False
        with locked(name, progress):
            broker = cls.load(folder, progress)
            if broker is None:
                remove(folder)
                return False
            ran = broker._in_room.alive()
            broker.stop()
            return ran

    @classmethod
    def status(cls, version: str | None = None) -> list[dict[str, Any]]:
        """What runs, as plain values: this version, or all, the chosen one behind the others."""
        if broker := cls.named():
            return [broker._tell({'running': broker.alive(), 'how': cls.variable})]
        chosen = cls.chosen(version)
        others = [] if version else [other for other in cls.versions if other != chosen]
        found = []
        for each in (*others, chosen):
            told: dict[str, Any] = {'version': each, 'running': False}
            if broker := cls.running(each):
                told = broker._tell(told | {'how': broker._in_room.kind} | broker._details())
            found.append({'kind': cls.kind, **told})
        return found

    def _tell(self, told: dict[str, Any]) -> dict[str, Any]:
        if release := self.release:
            told = told | {'release': release}
        return {'kind': self.kind, **told, 'variables': self.variables()}

    @classmethod
    def _clear(cls, name: str) -> None:
        """Remove what is left of a shared broker that does not run."""
        folder = run_folder(name)
        if stale := cls.load(folder):
            stale._end()
        remove(folder)
