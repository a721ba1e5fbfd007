"""The classes of the lane table: scenarios, kinds of work, libraries, lanes."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

POLLING = '-polling'  # ends the names of libraries that poll while they wait for a confirm
BUSY_POLL = 0.0005  # seconds, of RbFly's lanes that poll


@dataclass(frozen=True)
class Scenario:
    """Kinds of work that are measured together.

    :ivar axis: in a study, what its values are.
    :ivar series: in a study, the titles of its series.
    """

    title: str
    about: str
    axis: str = ''
    series: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Stored:
    """The contents of a stream to consume.

    :ivar size: body size in bytes.
    :ivar properties: whether messages have the properties of the codec's message.
    :ivar value: the value used as body, a name in `VALUES` of :mod:`.kinds`; empty for bytes.
    :ivar sub_entry: messages per uncompressed sub-entry; 0 for none.
    :ivar frame: messages per Publish frame, each frame confirmed before the next is sent.  The
        broker then cuts chunks almost independently of the publisher, so runs are comparable.
    :ivar readers: subscriptions on one connection that each consume the whole stream.
    """

    size: int = 10
    properties: bool = False
    value: str = ''
    sub_entry: int = 0
    frame: int = 4_000
    readers: int = 1


@dataclass(frozen=True)
class Kind:
    """A kind of work that several libraries do, so that their lanes can be compared.

    :ivar work: what to do, a name that the lane modules know.
    :ivar full: messages per round at scale 1.
    :ivar scale: default scale.
    :ivar quick: messages per round of a quick run.
    :ivar size: messages per batch; message counts are multiples of it.
    :ivar floor: library whose lane is the floor of this kind; empty for none.
    :ivar slowest: messages per second below which a lane counts as stuck.
    :ivar stored: what to consume; None if this kind does not consume.
    :ivar warm_up: messages in the unrecorded turn before the first round.
    :ivar like: kind that provides the scale if none is specified for this one.
    :ivar frame: entries per frame of the floor.
    :ivar window: maximum number of unconfirmed entries.
    :ivar series: in a study, the work that is done for several values of `at`; otherwise empty.
    :ivar at: the value that the study varies.
    :ivar body: size in bytes of published bodies.
    :ivar value: name of the published value; empty for bytes.
    :ivar tasks: tasks per process, each awaiting its own confirms.
    :ivar publishers: publishers per process.
    :ivar processes: processes that share the work, running in parallel.
    :ivar streams: number of streams to spread the work over; if above 1, a number is appended to
        their names.
    :ivar partitions: number of partitions of the super stream to use; 0 for a plain stream.
    :ivar nodes: number of nodes that lead the partitions, in a cluster of three; 0 for a broker of
        one node.
    :ivar delay: injected round-trip time in milliseconds; None to inject nothing.
    :ivar rate: messages per second of an open loop; 0 for a closed loop.
    :ivar rounds: maximum number of rounds to take part in; 0 for all.
    :ivar plain: the same work without TLS; this one uses TLS, unless empty.
    :ivar metered: whether the broker's processor time and the bytes on the wire are measured.
    """

    name: str
    scenario: str
    title: str
    full: int
    scale: float
    quick: int
    size: int
    warm_up: int
    floor: str
    slowest: int
    work: str = ''
    stored: Stored | None = None
    like: str = ''
    frame: int = 1
    window: int = 1
    series: str = ''
    at: int = 0
    body: int = 10
    value: str = ''
    tasks: int = 1
    publishers: int = 1
    processes: int = 1
    streams: int = 1
    partitions: int = 0
    nodes: int = 0
    delay: int | None = None
    rate: int = 0
    rounds: int = 0
    plain: str = ''
    metered: bool = False

    def count(self, scale: float) -> int:
        """Messages per round at this scale."""
        return self.whole(self.full * scale)

    def part_of(self, rounds: int) -> int:
        """How many of a run's rounds this kind takes part in."""
        return min(rounds, self.rounds or rounds)

    def whole(self, count: float) -> int:
        """Round a message count to whole batches."""
        return max(1, round(count / self.size)) * self.size


@dataclass(frozen=True)
class Library:
    """A library that publishes, consumes, encodes or decodes, in one way of using it.

    :ivar title: its name in the report.
    :ivar needs: distributions that must be installed.
    :ivar program: separate program that does its work; empty for :mod:`perf.worker`.
    :ivar is_floor: whether it is no library, but exchanges the same frames with the broker.
    """

    name: str
    title: str
    needs: tuple[str, ...] = ()
    program: str = ''
    is_floor: bool = False


@dataclass(frozen=True)
class Use:
    """How a library does some kinds of work.

    :ivar module: module with its lanes, in :mod:`perf.clients`.
    :ivar kinds: names of the kinds of work that it does.
    :ivar how: how it is used, as text.
    :ivar loop: event loop of its lanes.
    :ivar broker: broker that it uses; empty for none.
    :ivar part: fraction of a kind's messages that a slow library handles per round.
    :ivar options: additional arguments for the function `make` of the module.
    :ivar python: version of the Python that runs it, such as 3.14; empty for that of the run.
    """

    library: Library
    module: str
    kinds: tuple[str, ...]
    how: str
    loop: str
    broker: str
    part: float = 1.0
    options: Mapping[str, Any] = field(default_factory=dict)
    python: str = ''


@dataclass(frozen=True)
class Lane:
    """One library doing one kind of work."""

    use: Use
    kind: Kind

    @property
    def library(self) -> Library:
        return self.use.library

    @property
    def needs(self) -> tuple[str, ...]:
        """Distributions that must be installed."""
        loop = () if self.use.loop == 'none' else (self.use.loop,)
        return (*self.library.needs, *loop)

    @property
    def name(self) -> str:
        return f'{self.library.name}-{self.kind.name}'

    @property
    def broker(self) -> str:
        """The broker it uses, with a suffix if it is not the usual one; empty for none."""
        if self.kind.nodes:
            return f'{self.use.broker}-cluster'
        if self.kind.plain:
            return f'{self.use.broker}-tls'
        return self.use.broker + ('-far' if self.kind.delay is not None else '')

    @property
    def floor(self) -> str:
        """Name of its floor, which need not exist; a lane that polls has one that polls."""
        return f'{self.kind.floor}{POLLING if self.polls else ""}-{self.kind.name}'

    @property
    def plain(self) -> str:
        """Name of the lane that does the same without TLS; empty if this one uses none."""
        return f'{self.library.name}-{self.kind.plain}' if self.kind.plain else ''

    @property
    def sleeping(self) -> str:
        """Name of the lane that does the same without polling."""
        return f'{self.library.name.removesuffix(POLLING)}-{self.kind.name}'

    @property
    def polls(self) -> bool:
        """Whether it polls while it waits, so that it is compared only with lanes that do."""
        return self.library.name.endswith(POLLING)

    @property
    def is_floor(self) -> bool:
        return self.name == self.floor
