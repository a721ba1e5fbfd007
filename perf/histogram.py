"""A histogram of seconds in buckets 1 % wide, small however many values it counts."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Self

WIDTH = 1.01  # end of a bucket divided by its start
SHORTEST = 1e-9  # seconds; smaller values count as this

SCALE = 1 / math.log(WIDTH)


class Histogram:
    """Counts of values per bucket; bucket `b` spans `WIDTH ** b` to `WIDTH ** (b + 1)`."""

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        self.counts = Counter(counts or {})

    @classmethod
    def load(cls, dumped: Mapping[str, int]) -> Self:
        """Create a histogram from the result of `dump`."""
        return cls({int(bucket): count for bucket, count in dumped.items()})

    def dump(self) -> dict[str, int]:
        """Convert the counts to JSON, in the order of buckets."""
        return {str(bucket): self.counts[bucket] for bucket in sorted(self.counts)}

    def __len__(self) -> int:
        return self.counts.total()

    def add(self, seconds: float) -> None:
        """Add a value."""
        self.counts[math.floor(math.log(max(seconds, SHORTEST)) * SCALE)] += 1

    def merge(self, other: 'Histogram') -> None:
        """Add all values of another histogram."""
        self.counts.update(other.counts)

    def quantile(self, q: float) -> float:
        """The smallest value that at least a fraction `q` of the values does not exceed.

        The result is the middle of its bucket.

        :raises ValueError: the histogram is empty, or `q` is not between 0 and 1.
        """
        total = len(self)
        if not total or not 0 <= q <= 1:
            raise ValueError(f'no quantile {q} of {total} values')
        rank = max(math.ceil(q * total), 1)
        for bucket in sorted(self.counts):
            rank -= self.counts[bucket]
            if rank <= 0:
                break
        return float(WIDTH ** (bucket + 0.5))
