"""
The base class of all brokers: lookup, status and shutdown.

A broker is shared, private, or external (started by someone else and named by an environment
variable). Subclasses know how to start their kind.
"""

from __future__ import annotations

import abc
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from .sandbox import Sandbox
from .state import BrokerError, Progress, locked, remove, run_folder


class Broker(abc.ABC):
    """A running broker, either started in a sandbox or external."""

    kind: ClassVar[str]
    variable: ClassVar[str]  # environment variable that names an external broker
    versions: ClassVar[Sequence[str]]  # one shared broker each; the first is the default
    version_variable: ClassVar[str | None] = None  # environment variable that selects a version

    def __init__(self, sandbox: Sandbox | None, progress: Progress | None) -> None:
        self._sandbox = sandbox
        self._progress = progress or Progress(quiet=True)
        self._private = False
        self._complete = False  # whether startup finished

    @property
    def external(self) -> bool:
        """Whether someone else started the broker; an environment variable names it."""
        return self._sandbox is None

    @abc.abstractmethod
    def variables(self) -> dict[str, str]:
        """The broker's addresses as environment variables."""

    @abc.abstractmethod
    def alive(self) -> bool:
        """Whether the broker is running."""

    @property
    def release(self) -> str:
        """The full version that the broker reports, or an empty string."""
        return ''

    @abc.abstractmethod
    def start(self) -> None:
        """Start the broker and wait until it is ready."""

    @abc.abstractmethod
    def stop(self) -> None:
        """Stop the broker and remove its data."""

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
        """Kill the broker and remove its data."""
        self._own_sandbox.kill()
        remove(self._own_sandbox.folder)

    @property
    def _own_sandbox(self) -> Sandbox:
        if self._sandbox is None:
            raise BrokerError(f'{self.variable} names a broker that was not started here')
        return self._sandbox

    def _details(self) -> dict[str, Any]:
        """What `status` reports about a broker started here."""
        return {'running': self.alive(), 'logs': str(self._own_sandbox.folder)}

    # --- lookup ---

    @classmethod
    @abc.abstractmethod
    def named(cls, environ: Mapping[str, str] | None = None) -> Self | None:
        """The external broker that the environment variable names, or None."""

    @classmethod
    @abc.abstractmethod
    def load(cls, folder: Path, progress: Progress | None = None) -> Self | None:
        """The broker recorded in this folder's state file, or None."""

    @classmethod
    def chosen(cls, version: str | None = None) -> str:
        """The given version, else the one the environment selects, else the first."""
        selected = version or os.environ.get(cls.version_variable or '') or cls.versions[0]
        if selected not in cls.versions:
            raise BrokerError(
                f'{cls.kind}: unknown version {selected!r}; choose from {", ".join(cls.versions)}'
            )
        return selected

    @classmethod
    def shared(cls, version: str | None = None) -> str:
        """The name of the shared broker of this version."""
        return f'{cls.kind}-{cls.chosen(version)}'

    @classmethod
    def running(cls, version: str | None = None, progress: Progress | None = None) -> Self | None:
        """The shared broker started here, or None if it is not running."""
        broker = cls.load(run_folder(cls.shared(version)), progress)
        if broker is None or not broker._complete or not broker._own_sandbox.alive():
            return None
        return broker

    @classmethod
    def down(cls, version: str | None = None, progress: Progress | None = None) -> bool:
        """Stop the shared broker; return whether it was running. Leaves external brokers alone."""
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
            ran = broker._own_sandbox.alive()
            broker.stop()
            return ran

    @classmethod
    def status(cls, version: str | None = None) -> list[dict[str, Any]]:
        """Report on this version, or on all of them with the selected version last."""
        if broker := cls.named():
            return [broker._report({'running': broker.alive(), 'how': cls.variable})]
        chosen = cls.chosen(version)
        others = [] if version else [other for other in cls.versions if other != chosen]
        reports = []
        for each in (*others, chosen):
            report: dict[str, Any] = {'version': each, 'running': False}
            if broker := cls.running(each):
                report = broker._report(
                    report | {'how': broker._own_sandbox.kind} | broker._details()
                )
            reports.append({'kind': cls.kind, **report})
        return reports

    def _report(self, report: dict[str, Any]) -> dict[str, Any]:
        if release := self.release:
            report = report | {'release': release}
        return {'kind': self.kind, **report, 'variables': self.variables()}

    @classmethod
    def _clear(cls, name: str) -> None:
        """Remove what a shared broker that is no longer running left behind."""
        folder = run_folder(name)
        if stale := cls.load(folder):
            stale._end()
        remove(folder)
