"""The outcome of each message that a soak sends, to compare with the stored messages."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

__all__ = ['CONFIRM', 'CONFIRMED', 'MESSAGES', 'REFUSED', 'UNKNOWN', 'Log']

MESSAGES = 30_000  # maximum number per publisher and round
CONFIRM = 20.0  # timeout of calls in seconds
UNSENT, UNKNOWN, CONFIRMED, REFUSED = range(4)


class Log:
    """The outcomes of the messages of one publisher.

    :ivar stream: stream used by this publisher only.
    :ivar named: whether the publisher has a name, so that the broker discards duplicates.
    :ivar states: outcome by number of message.
    """

    def __init__(self, how: str, stream: str, named: bool) -> None:
        self.how = how
        self.stream = stream
        self.named = named
        self.states = bytearray(MESSAGES)
        self.next = 0

    def take(self, count: int, limit: int = MESSAGES) -> range:
        """Reserve the numbers of the next messages; their outcome is unknown until noted."""
        found = range(self.next, max(self.next, min(self.next + count, limit)))
        self.next = found.stop
        for number in found:
            self.states[number] = UNKNOWN
        return found

    def note(self, numbers: Sequence[int], state: int) -> None:
        for number in numbers:
            self.states[number] = state

    def wrong(self, stored: Sequence[int]) -> Counter[str]:
        """Count the contradictions between outcomes and stored messages, by kind."""
        found: Counter[str] = Counter()
        counts = Counter(stored)
        found['confirmed and lost'] = sum(
            state == CONFIRMED and not counts[number] for number, state in enumerate(self.states)
        )
        found['refused and stored'] = sum(
            state == REFUSED and counts[number] > 0 for number, state in enumerate(self.states)
        )
        found['never sent'] = sum(
            number >= MESSAGES or self.states[number] == UNSENT for number in counts
        )
        if self.named:
            found['duplicated'] = len(stored) - len(counts)
            found['out of order'] = sum(a > b for a, b in pairwise(stored))
        return +found
