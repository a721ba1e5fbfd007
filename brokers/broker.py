"""
What every broker is, whatever its kind: shared, private or of others; found again, and ended.

Nothing here knows how a kind is started.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from .room import Room
from .state import BrokerError, Progress, locked, remove, run_folder


class Broker(abc.ABC):
    """A running broker, in a room or started by others."""

    kind: ClassVar[str]  # names the shared one, too
    variable: ClassVar[str]  # of the environment: names one that others started

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
    def running(cls, progress: Progress | None = None) -> Self | None:
        """The shared broker that was started here, if it runs."""
        broker = cls.load(run_folder(cls.kind), progress)
        if broker is None or not broker._complete or not broker._in_room.alive():
            return None
        return broker

    @classmethod
    def down(cls, progress: Progress | None = None) -> bool:
        """Stop the shared broker; `False` if there was none. One of others is never touched."""
        progress = progress or Progress()
        folder = run_folder(cls.kind)
        if not folder.exists():
            return False
        with locked(cls.kind, progress):
            broker = cls.load(folder, progress)
            if broker is None:
                remove(folder)
                return False
            ran = broker._in_room.alive()
            broker.stop()
            return ran

    @classmethod
    def status(cls) -> dict[str, Any]:
        """What runs, as plain values."""
        found: dict[str, Any] = {'kind': cls.kind}
        if broker := cls.named():
            found |= {'running': broker.alive(), 'how': cls.variable}
        elif broker := cls.running():
            found |= {'how': broker._in_room.kind, **broker._details()}
        else:
            return found | {'running': False}
        return found | {'variables': broker.variables()}

    @classmethod
    def _clear(cls) -> None:
        """Remove what is left of a shared broker that does not run."""
        folder = run_folder(cls.kind)
        if stale := cls.load(folder):
            stale._end()
        remove(folder)
