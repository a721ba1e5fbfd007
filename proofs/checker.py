"""Compare stored messages with sent ones; a check describes the contradiction, or returns ''."""

from array import array
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby, zip_longest
from typing import Literal

from perf.super_stream_wire import partition_of

from .history import CONFIRMED, REFUSED, UNKNOWN, UNSENT, Delivery, History, Messages
from .run import Run

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


def copies(history: History, *, cuts: bool) -> Callable[[int], int]:
    """How often each message may be stored, from the epochs in which it was sent.

    :param cuts: whether each fault causes one duplicate at most.
    """

    def allowed(number: int) -> int:
        called, returned = history.called[number], history.returned[number]
        if history.named or (called == returned and not called % 2):
            return 1
        return 1 + (returned - called) // 2 if cuts else history.total

    return allowed


def check_stored(
    run: Run,
    history: History,
    stored: Sequence[Sequence[int]],
    allowed: Callable[[int], int] | None = None,
    order: Literal['all', 'key', ''] = 'all',
) -> None:
    """Check what a stream, or each partition of a super stream, contains.

    :param allowed: how often each message may be stored, if this is limited without a name.
    :param order: which messages were sent one after the other: all, or those of each key.
    """
    numbers = [number for part in stored for number in part]
    wrong = violations(history, numbers, allowed, ordered=order == 'all')
    run.found['stored'] = [len(part) for part in stored] if order == 'key' else len(numbers)
    refused = wrong.pop(REFUSED_STORED, [])
    outcomes = history.outcomes
    if outcomes.count(REFUSED) or outcomes.count(UNKNOWN):
        run.found |= {
            'not sent': outcomes.count(REFUSED),
            'unknown': outcomes.count(UNKNOWN),
            'unknown and stored': sum(outcomes[number] == UNKNOWN for number in set(numbers)),
        }
        run.check_none('no message is stored that was reported as not sent', len(refused))
    unsorted = described({ORDER: wrong.pop(ORDER, [])})
    claim = 'stored exactly once'
    if not history.named:
        claim = 'stored at least once'
        if allowed:
            claim += ', and exactly once if no fault preceded the confirm'
        run.found['duplicates'] = len(numbers) - len(set(numbers))
    run.check_none(claim, described(wrong))
    if order == 'all':
        run.check_none('stored in order', unsorted)
    elif order == 'key':
        run.check_none('each message is stored in the partition of its key', misplaced(stored))
        run.check_none("each key's messages are stored in order", keys_unordered(stored))


def undelivered(delivery: Delivery, stored: dict[str, Messages]) -> str:
    """Check that a reader has received the stored messages, in order and with their offsets."""
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
