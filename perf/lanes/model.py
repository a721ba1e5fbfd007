"""The words of the table of lanes: kinds of work, libraries, lanes."""

from dataclasses import dataclass

__all__ = ['Kind', 'Lane', 'Library', 'Stored']


@dataclass(frozen=True)
class Stored:
    """What a stream holds that is consumed.

    :ivar size: bytes of a body.
    :ivar properties: messages have the properties of the codec's message.
    :ivar value: name of the value that is their body, of :mod:`perf.lanes.values`; empty for bytes.
    :ivar sub_entry: messages in an uncompressed sub-entry; 0 if there is none.
    :ivar frame: messages in the frames that it is filled by, each confirmed before the next; it
        depends on little but the broker how they are cut into chunks then, so runs can be compared.
    :ivar readers: subscriptions of one connection that read all of it at once.
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

    :ivar work: what is done, a name that the modules of lanes know.
    :ivar full: messages per round at scale 1.
    :ivar scale: scale when none is given.
    :ivar quick: messages per round of a quick run.
    :ivar size: messages in a batch; counts are multiples of it.
    :ivar floor: library whose lane is the floor of this kind; empty if it has none.
    :ivar slowest: messages per second, below which a lane is taken for stuck.
    :ivar stored: what is consumed; None if the kind does not consume.
    :ivar warm_up: messages of the turn before the first round, which is not recorded.
    :ivar like: kind whose scale it takes when none is given for itself.
    :ivar references: what else lanes are compared with, titles and names of lanes.
    :ivar frame: entries in a frame of the floor.
    :ivar window: entries unconfirmed at most.
    :ivar series: in a study, what is done for several values of `at`; empty elsewhere.
    :ivar at: the value that a study is about.
    :ivar body: bytes of a body that is published.
    :ivar value: name of the value that is published; empty for bytes.
    :ivar tasks: tasks of each process, each of which awaits its own confirms.
    :ivar publishers: publishers of each process.
    :ivar processes: processes that do a part of the work each, at the same time.
    :ivar streams: streams that it is spread over; above 1, their names end in a number.
    :ivar delay: milliseconds of a round trip that are injected; None where it is left as it is.
    :ivar rate: messages a second of an open loop; 0 where the loop is closed.
    :ivar rounds: in how many rounds it takes part at most; 0 for all.
    """

    name: str
    scenario: str
    title: str
    full: int
    scale: float
    quick: int
    size: int
    floor: str
    slowest: int
    warm_up: int
    work: str = ''
    stored: Stored | None = None
    like: str = ''
    references: tuple[tuple[str, str], ...] = ()
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
    delay: int | None = None
    rate: int = 0
    rounds: int = 0

    def count(self, scale: float) -> int:
        """Messages per round at that scale."""
        return self.whole(self.full * scale)

    def part_of(self, rounds: int) -> int:
        """In how many of a run's rounds it takes part."""
        return min(rounds, self.rounds or rounds)

    def whole(self, count: float) -> int:
        """So many messages, in whole batches."""
        return max(1, round(count / self.size)) * self.size


@dataclass(frozen=True)
class Library:
    """Something that publishes, consumes, encodes or decodes.

    :ivar module: module of its lanes, in this package.
    :ivar kinds: names of the kinds of work that it does.
    :ivar needs: distributions on the package index without which it cannot run.
    :ivar loop: event loop that its lanes run on.
    :ivar broker: broker it talks to; empty if it needs none.
    :ivar how: how it is used.
    :ivar part: part of the messages of a kind that it is given in a round, where it is slow.
    :ivar program: program of its own that does its work; empty for :mod:`perf.worker`.
    """

    name: str
    module: str
    kinds: tuple[str, ...]
    needs: tuple[str, ...]
    loop: str
    broker: str
    how: str
    part: float = 1.0
    program: str = ''


@dataclass(frozen=True)
class Lane:
    """One library doing one kind of work."""

    library: Library
    kind: Kind

    @property
    def name(self) -> str:
        return f'{self.library.name}-{self.kind.name}'

    @property
    def broker(self) -> str:
        """Broker it talks to, far away where there is a delay; empty if it needs none."""
        far = '-far' if self.kind.delay is not None else ''
        return self.library.broker + far

    @property
    def is_floor(self) -> bool:
        return self.library.name == self.kind.floor
