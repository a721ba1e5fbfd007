"""Compare what is stored with what was sent; a check describes what is wrong, or returns ''."""

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby, zip_longest

from perf.super_stream_wire import partition_of

from .history import CONFIRMED, REFUSED, UNSENT, Delivery, History, Messages

LOST, REFUSED_STORED = 'confirmed and lost', 'refused and stored'
NEVER_SENT, TWICE, ORDER = 'never sent', 'duplicated', 'out of order'
KEY = 3  # last digits of a message that are its key
KEYS = 1_000


def violations(
    history: History,
    stored: Sequence[int],
    allowed: Callable[[int], float] | None = None,
    *,
    ordered: bool = True,
) -> dict[str, list[int]]:
    """The numbers of the messages that contradict the history, by kind of violation.

    :param stored: numbers in the order of the stream.
    :param allowed: how often a message may be stored; by default once if the publisher is named,
        and any number of times otherwise.
    :param ordered: whether all messages were sent one after the other.
    """
    counts = Counter(stored)
    outcomes = history.outcomes
    limit = allowed or (lambda number: 1 if history.named else len(stored))
    found = {
        LOST: [n for n, outcome in enumerate(outcomes) if outcome == CONFIRMED and not counts[n]],
        REFUSED_STORED: [n for n in counts if is_sent(history, n) and outcomes[n] == REFUSED],
        NEVER_SENT: [n for n in counts if not is_sent(history, n)],
        TWICE: [n for n, count in counts.items() if is_sent(history, n) and count > limit(n)],
        ORDER: unordered(stored) if ordered and (history.named or allowed) else [],
    }
    return {kind: numbers for kind, numbers in found.items() if numbers}


def is_sent(history: History, number: int) -> bool:
    return 0 <= number < len(history.outcomes) and history.outcomes[number] != UNSENT


def unordered(numbers: Sequence[int]) -> list[int]:
    """The numbers whose first copy comes after that of a higher number."""
    found = []
    last = -1
    for number in dict.fromkeys(numbers):
        if number < last:
            found.append(number)
        else:
            last = number
    return found


def unordered_by(numbers: Sequence[int], key: Callable[[int], int]) -> str:
    """Like `unordered`, among the numbers with the same key."""
    by_key = sorted(dict.fromkeys(numbers), key=key)
    for which, group in groupby(by_key, key=key):
        if wrong := unordered(list(group)):
            return f'{which:,}: {wrong[0]:,} comes too late'
    return ''


def described(found: dict[str, list[int]]) -> str:
    """Violations in words."""
    return '; '.join(
        f'{len(numbers):,} {kind}, first {min(numbers):,}'
        for kind, numbers in found.items()
        if numbers
    )


def undelivered(delivery: Delivery, stored: dict[str, Messages]) -> str:
    """Check that a reader has received what is stored, in order and with its offsets."""
    for stream, wanted in stored.items():
        found = delivery.messages.get(stream, (array('q'), array('q')))
        if found == wanted:
            continue
        pairs = zip_longest(zip(*found, strict=True), zip(*wanted, strict=True))
        for i, (one, other) in enumerate(pairs):
            if one != other:
                return f'{stream}, message {i:,}: number and offset are {one}, not {other}'
    return ''


# -- keys


def key_of(message: bytes) -> str:
    """The key of a message: the last digits of its number."""
    return message[-KEY:].decode()


def misplaced(stored: Sequence[Sequence[int]]) -> str:
    """Check that each message is stored in the partition of its key."""
    count = len(stored)
    where = {i: partition_of(b'%0*d' % (KEY, i), count) for i in range(KEYS)}
    for i, numbers in enumerate(stored):
        for number in numbers:
            if (home := where[number % KEYS]) != i:
                return f'{number:,} in partition {i} instead of {home}'
    return ''


def keys_unordered(stored: Sequence[Sequence[int]]) -> str:
    """Check that the first copies of each key's messages are in order, in a single partition."""
    homes: dict[int, int] = {}
    for i, numbers in enumerate(stored):
        for key in {number % KEYS for number in numbers}:
            if (home := homes.setdefault(key, i)) != i:
                return f'key {key} in partitions {home} and {i}'
        if wrong := unordered_by(numbers, lambda number: number % KEYS):
            return f'key {wrong}'
    return ''
