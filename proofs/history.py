"""The history of one publisher's messages: who sent what and when, and what the calls reported."""

from array import array
from collections.abc import Callable, Iterable

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
        self,
        label: str,
        stream: str,
        named: bool,
        total: int,
        epoch: Callable[[], int] = lambda: 0,
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
