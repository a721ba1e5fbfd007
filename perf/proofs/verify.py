"""Compares what is stored with what was sent; each check gives what is wrong, or nothing."""

from array import array
from collections import Counter
from collections.abc import Callable, Sequence

__all__ = ['at_least_once', 'exactly_once', 'in_order', 'tasks_in_order']


def exactly_once(numbers: Sequence[int], total: int) -> str:
    """Every number below the total is there once."""
    return at_least_once(numbers, total, lambda number: 1)


def at_least_once(numbers: Sequence[int], total: int, allowed: Callable[[int], int]) -> str:
    """Every number below the total is there, as often as it is allowed at most."""
    counts = Counter(numbers)
    missing = [i for i in range(total) if not counts[i]]
    strange = [i for i in counts if not 0 <= i < total]
    often = {i: n for i, n in counts.items() if n > 1 and n > allowed(i)}
    found = []
    for what, which in (('missing', missing), ('never sent', strange)):
        if which:
            found.append(f'{len(which):,} {what}, first {which[0]:,}')
    if often:
        number = min(often)
        found.append(f'{len(often):,} too often, first {number:,}: {often[number]} times')
    return '; '.join(found)


def in_order(numbers: Sequence[int]) -> str:
    """The first copies of the numbers are in order."""
    last = -1
    seen: set[int] = set()
    for i, number in enumerate(numbers):
        if number in seen:
            continue
        if number < last:
            return f'{number:,} behind {last:,}, message {i:,} of the stream'
        last = number
        seen.add(number)
    return ''


def tasks_in_order(numbers: Sequence[int], each: int) -> str:
    """The numbers of each task are in order; task t has those from t * each on."""
    last = array('q', [-1]) * (max(numbers, default=0) // each + 1)
    for number in numbers:
        task = number // each
        if number <= last[task]:
            return f'task {task:,}: {number % each:,} behind {last[task] % each:,}'
        last[task] = number
    return ''
