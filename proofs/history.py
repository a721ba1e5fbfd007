"""The history of a run: sent, confirmed, delivered and stored messages, and the faults.

Messages have numbers, which are their bodies.
"""

from array import array
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import NamedTuple

Messages = tuple['array[int]', 'array[int]']  # numbers and offsets, in the order of a stream

UNSENT, UNKNOWN, CONFIRMED, REFUSED = range(4)


class History:
    """What happened to the messages of one publisher, by their numbers.

    An epoch is twice the number of faults so far, plus one during a fault.

    :param total: number of messages, at most.
    :param epoch: returns the current epoch.
    :ivar stream: the stream or super stream that has only these messages.
    :ivar named: whether the publisher has a name, so that the broker discards duplicates.
    :ivar outcomes: UNSENT, UNKNOWN until reported, CONFIRMED, or REFUSED: certainly not stored.
    :ivar called: epoch in which each message was sent.
    :ivar returned: epoch in which its outcome was reported.
    """

    def __init__(
        self, label: str, stream: str, named: bool, total: int, epoch: Callable[[], int] = lambda: 0
    ) -> None:
        self.label = label
        self.stream = stream
        self.named = named
        self.total = total
        self.next = 0
        self.epoch = epoch
        self.outcomes = bytearray(total)
        self.called = array('L', [0]) * total
        self.returned = array('L', [0]) * total

    def take(self, count: int, limit: int | None = None) -> range:
        """Record that the next messages, below the limit, are sent; return their numbers."""
        end = min(self.next + count, self.total if limit is None else limit)
        numbers = range(self.next, max(self.next, end))
        self.next = numbers.stop
        for number in numbers:
            self.send(number)
        return numbers

    def send(self, number: int) -> None:
        """Record that a message is sent; its outcome is unknown until noted."""
        self.outcomes[number] = UNKNOWN
        self.called[number] = self.epoch()

    def note(self, numbers: Iterable[int], outcome: int) -> None:
        """Record what a call has reported."""
        epoch = self.epoch()
        for number in numbers:
            self.outcomes[number] = outcome
            self.returned[number] = epoch


class Delivery:
    """What one reader has received.

    :ivar messages: from each stream, in order.
    """

    def __init__(self) -> None:
        self.messages: dict[str, Messages] = defaultdict(lambda: (array('q'), array('q')))
        self.count = 0

    def receive(self, stream: str, offset: int, number: int) -> None:
        numbers, offsets = self.messages[stream]
        numbers.append(number)
        offsets.append(offset)
        self.count += 1

    def next(self, stream: str) -> int:
        """The offset after that of the last message."""
        return self.messages[stream][1][-1] + 1 if stream in self.messages else 0


class Record(NamedTuple):
    """What a member of a group has noted.

    :ivar kind: `message`: delivered; `stored`: the member has sent this offset to the broker;
        `active`, `inactive`, `late`, `moved`, `lost`: events of the client; `error`: the iteration
        has raised one; `joins`: it can be asked to leave; `left`: the process ends in order; or an
        action of the proof on the process: `leaves`, `frozen`, `thawed`, `killed`.
    :ivar partition: '' for all.
    """

    time: float
    kind: str
    partition: str = ''
    offset: int = 0
    number: int = 0


class Fault(NamedTuple):
    """A fault of the brokers, or of a member.

    :ivar partition: '' for all.
    """

    begin: float
    end: float
    kind: str
    partition: str = ''
