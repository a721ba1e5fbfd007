"""Compare stored with sent messages; a check returns a description of the error, or ''."""

from array import array
from collections import Counter
from collections.abc import Callable, Container, Sequence

__all__ = ['at_least_once', 'exactly_once', 'in_order', 'tasks_in_order']


def exactly_once(numbers: Sequence[int], total: int) -> str:
    """Check that every number below `total` is stored once."""
    return at_least_once(numbers, total, lambda number: 1)


def at_least_once(
    numbers: Sequence[int],
    total: int,
    allowed: Callable[[int], int],
    optional: Container[int] = (),
) -> str:
    """Check that every number below `total` is stored, at most as often as allowed.

    :param optional: numbers that need not be stored.
    """
    counts = Counter(numbers)
    missing = [i for i in range(total) if not counts[i] and i not in optional]
    unsent = [i for i in counts if not 0 <= i < total]
    excess = {i: n for i, n in counts.items() if 0 <= i < total and n > allowed(i)}
    found = []
    for what, which in (('missing', missing), ('never sent', unsent)):
        if which:
            found.append(f'{len(which):,} {what}, first {which[0]:,}')
    if excess:
        number = min(excess)
        found.append(f'{len(excess):,} too often, first {number:,}: {excess[number]} times')
    return '; '.join(found)


def in_order(numbers: Sequence[int]) -> str:
    """Check that the first copies of the numbers are in order."""
    last = -1
    seen: set[int] = set()
    for i, number in enumerate(numbers):
        if number in seen:
            continue
        if number < last:
            return f'{number:,} after {last:,}, message {i:,} of the stream'
        last = number
        seen.add(number)
    return ''


def tasks_in_order(numbers: Sequence[int], each: int) -> str:
    """Check that the numbers of each task are in order; task t's numbers start at t * each."""
    last = array('q', [-1]) * (max(numbers, default=0) // each + 1)
    for number in numbers:
        task = number // each
        if number <= last[task]:
            return f'task {task:,}: {number % each:,} after {last[task] % each:,}'
        last[task] = number
    return ''
