"""What a publisher of a soak was told of each message, to be compared with what is stored."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

__all__ = ['CONFIRM', 'CONFIRMED', 'MESSAGES', 'REFUSED', 'UNKNOWN', 'Log']

MESSAGES = 30_000  # of a publisher in a round, at most
CONFIRM = 20.0  # seconds within which a call ends, one way or the other
UNSENT, UNKNOWN, CONFIRMED, REFUSED = range(4)


class Log:
    """What became of the messages of one publisher.

    :ivar stream: its stream, where it is alone.
    :ivar states: of each message.
    """

    def __init__(self, how: str, stream: str, named: bool) -> None:
        self.how = how
        self.stream = stream
        self.named = named
        self.states = bytearray(MESSAGES)
        self.next = 0

    def take(self, count: int, limit: int = MESSAGES) -> range:
        """The numbers of the next messages; nothing is known of them until they are noted."""
        found = range(self.next, max(self.next, min(self.next + count, limit)))
        self.next = found.stop
        for number in found:
            self.states[number] = UNKNOWN
        return found

    def note(self, numbers: Sequence[int], state: int) -> None:
        for number in numbers:
            self.states[number] = state

    def wrong(self, stored: Sequence[int]) -> Counter[str]:
        """What does not agree with what is stored, and how often."""
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
            found['doubled'] = len(stored) - len(counts)
            found['out of order'] = sum(a > b for a, b in pairwise(stored))
        return +found
