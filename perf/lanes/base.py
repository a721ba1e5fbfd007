"""What the code of a lane looks like to the process that runs it."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

from ..histogram import Histogram

__all__ = ['Target', 'Work', 'bodies', 'numbered']


@dataclass(frozen=True)
class Target:
    """Where a lane works.

    :ivar address: URI of RabbitMQ, or host:port of Kafka.
    :ivar stream: name of stream or topic; the runner creates and deletes it.
    """

    address: str
    stream: str


class Work(ABC):
    """The work of one lane: opened once, then prepared and run in every round, closed at last.

    Only `run` is on the clock.

    :ivar histograms: latencies of the last round by name, where they are taken.
    :ivar late: seconds that the last round ended behind its schedule, if it has one and did not
        keep it.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self.histograms: dict[str, Histogram] = {}
        self.late = 0.0

    @abstractmethod
    async def open(self) -> None:
        """Connect."""

    @abstractmethod
    async def prepare(self, count: int) -> None:
        """Make `count` messages, or whatever `run` is to find ready."""

    @abstractmethod
    async def run(self) -> int:
        """Do the work; return the number of messages confirmed, or consumed."""

    @abstractmethod
    async def finish(self) -> None:
        """Clean up behind `run`, off the clock."""

    @abstractmethod
    async def close(self) -> None:
        """Disconnect."""

    async def round_trip(self) -> float:
        """Ask the broker for something, off the clock; seconds until it has answered."""
        raise NotImplementedError


def numbered(number: int, size: int = 10) -> bytes:
    """The body of a message: its number, in so many bytes."""
    return b'%0*d' % (size, number)


def bodies(count: int, size: int = 10) -> list[bytes]:
    """Make the bodies of a round: no two alike."""
    return [numbered(i, size) for i in range(count)]
