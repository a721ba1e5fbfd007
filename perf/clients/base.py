"""The interface between a lane's code and the process that runs it."""

import ssl
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from ..histogram import Histogram
from ..lanes import Kind


@dataclass(frozen=True)
class Target:
    """The broker and stream that a lane uses.

    :ivar address: URI of RabbitMQ, or host:port of Kafka.
    :ivar stream: name of the stream or topic; the runner creates and deletes it.
    :ivar ca_file: certificate of the broker's authority; empty without TLS.
    """

    address: str
    stream: str
    ca_file: str = ''

    @property
    def tls_context(self) -> ssl.SSLContext | None:
        """A context that trusts the authority; None without TLS."""
        return ssl.create_default_context(cafile=self.ca_file) if self.ca_file else None


class Work(ABC):
    """The work of one lane: opened once, prepared and run in each round, closed at the end.

    Only `run` is timed.

    :ivar messages: what to publish in this round, in the form that the library takes.
    :ivar count: number of messages to publish or consume in this round.
    :ivar histograms: latencies of the last round by name, if the lane measures any.
    :ivar late: seconds by which the last round missed its schedule; 0 if it kept the schedule or
        has none.
    """

    def __init__(self, kind: Kind, target: Target) -> None:
        self.kind = kind
        self.target = target
        self.messages: list[Any] = []
        self.count = 0
        self.histograms: dict[str, Histogram] = {}
        self.late = 0.0

    @abstractmethod
    async def open(self) -> None:
        """Connect."""

    async def prepare(self, count: int) -> None:
        """Create `count` messages, or whatever `run` needs."""
        self.count = count
        if not self.kind.stored:
            self.messages = bodies(count, self.kind.body)

    @abstractmethod
    async def run(self) -> int:
        """Do the work; return the number of confirmed or consumed messages."""

    async def finish(self) -> None:
        """Clean up after `run`, outside of the timed part."""
        self.messages = []

    @abstractmethod
    async def close(self) -> None:
        """Disconnect."""

    async def round_trip(self) -> float:
        """Send the broker a request, outside of the timed part; return seconds until it answers."""
        raise NotImplementedError


def numbered(number: int, size: int = 10) -> bytes:
    """The body of a message: its number, padded to `size` bytes."""
    return b'%0*d' % (size, number)


def bodies(count: int, size: int = 10) -> list[bytes]:
    """Create the bodies of a round, all different."""
    return [numbered(i, size) for i in range(count)]
