"""A histogram of seconds, in buckets of 1 %: small however many values there are."""

import math
from collections import Counter
from collections.abc import Mapping
from typing import Self

__all__ = ['WIDTH', 'Histogram']

WIDTH = 1.01  # of a bucket: its end by its start
SHORTEST = 1e-9  # seconds; what is less counts as that

SCALE = 1 / math.log(WIDTH)


class Histogram:
    """Counts values by bucket: bucket `b` has those from `WIDTH ** b` to `WIDTH ** (b + 1)`."""

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        self.counts = Counter(counts or {})

    @classmethod
    def load(cls, dumped: Mapping[str, int]) -> Self:
        """Make one of what `dump` gave."""
        return cls({int(bucket): count for bucket, count in dumped.items()})

    def dump(self) -> dict[str, int]:
        """Numbers of values by bucket, in order; for JSON."""
        return {str(bucket): self.counts[bucket] for bucket in sorted(self.counts)}

    def __len__(self) -> int:
        return self.counts.total()

    def add(self, seconds: float) -> None:
        """Count a value."""
        self.counts[math.floor(math.log(max(seconds, SHORTEST)) * SCALE)] += 1

    def merge(self, other: 'Histogram') -> None:
        """Count all values of another one, too."""
        self.counts.update(other.counts)

    def quantile(self, q: float) -> float:
        """The value that so large a part of them does not exceed: the middle of its bucket.

        :raises ValueError: there are no values, or `q` is not in 0 to 1.
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
