"""A histogram of durations: bounded memory, and an error below 1 %."""

from __future__ import annotations

from collections.abc import Iterator

EXACT = 8  # bits of a duration that its bucket keeps
HALF = 1 << (EXACT - 1)
LONGEST = 2**46 - 1  # nanoseconds: almost 20 hours; longer durations count as this


class Histogram:
    """Counts of durations in nanoseconds.

    Durations below 256 ns have a bucket each.  Above, each power of two has 128 buckets.
    """

    def __init__(self) -> None:
        self.counts: list[int] = [0] * (bucket(LONGEST) + 1)
        self.count: int = 0
        self.total: int = 0
        self.max: int = 0

    def add(self, duration: int, count: int = 1) -> None:
        """Count a duration, once or several times.

        :param duration: nanoseconds; less than 0 counts as 0.
        """
        duration = min(max(duration, 0), LONGEST)
        self.counts[bucket(duration)] += count
        self.count += count
        self.total += duration * count
        self.max = max(self.max, duration)

    def merge(self, other: Histogram) -> None:
        """Add the durations of another histogram."""
        if other.count:
            self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
            self.count += other.count
            self.total += other.total
            self.max = max(self.max, other.max)

    @property
    def mean(self) -> float | None:
        """The mean in seconds; None without durations."""
        return self.total / self.count / 1e9 if self.count else None

    def quantile(self, fraction: float) -> float | None:
        """Return the duration in seconds that this fraction of all durations does not exceed.

        It is the upper end of its bucket, at most the longest duration; None without durations.
        """
        if not self.count:
            return None
        left = max(1, -int(-self.count * fraction // 1))  # rounded up
        for index, count in self._filled():
            left -= count
            if left <= 0:
                return min(upper_end(index), self.max) / 1e9
        return self.max / 1e9

    def _filled(self) -> Iterator[tuple[int, int]]:
        return ((index, count) for index, count in enumerate(self.counts) if count)


def bucket(duration: int) -> int:
    """Return the number of the bucket of a duration in nanoseconds."""
    shift = max(duration.bit_length() - EXACT, 0)
    return shift * HALF + (duration >> shift)


def upper_end(index: int) -> int:
    """Return the longest duration in a bucket."""
    if index < 2 * HALF:
        return index
    shift = index // HALF - 1
    return ((index - shift * HALF + 1) << shift) - 1
