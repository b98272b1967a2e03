"""Latencies in logarithmic buckets: bounded memory, mergeable, percentiles to 1.6 %.

Values are microseconds. A value below 64 has a bucket of its own; above, every power of two has 64
buckets, so a bucket is at most 1/64 wider than its lower end. Buckets are sparse.

Pure.
"""

from collections.abc import Iterable, Mapping
from math import ceil

SUB_BITS = 6
_SUB = 1 << SUB_BITS
PERCENTILES = {"p50": 0.50, "p90": 0.90, "p99": 0.99, "p999": 0.999}


def bucket_of(value_us: int) -> int:
    """The bucket of a value; negative values count as 0."""
    if value_us < _SUB:
        return max(0, value_us)
    shift = value_us.bit_length() - SUB_BITS - 1
    return (shift << SUB_BITS) + (value_us >> shift)


def value_of(bucket: int) -> int:
    """The middle of a bucket, microseconds."""
    if bucket < 2 * _SUB:
        return bucket
    shift = (bucket >> SUB_BITS) - 1
    low = (bucket - (shift << SUB_BITS)) << shift
    return low + (1 << shift) // 2


class Histogram:
    """Counts per bucket and the exact maximum."""

    __slots__ = ("buckets", "max_us")

    def __init__(self) -> None:
        self.buckets: dict[int, int] = {}
        self.max_us = 0

    def add(self, value_us: int) -> None:
        """Count one value."""
        if value_us > self.max_us:
            self.max_us = value_us
        if value_us < _SUB:
            bucket = value_us if value_us > 0 else 0
        else:
            shift = value_us.bit_length() - SUB_BITS - 1
            bucket = (shift << SUB_BITS) + (value_us >> shift)
        buckets = self.buckets
        buckets[bucket] = buckets.get(bucket, 0) + 1

    def merge(self, other: "Histogram") -> None:
        """Add the counts of another."""
        self.max_us = max(self.max_us, other.max_us)
        for bucket, count in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count

    @property
    def count(self) -> int:
        """How many values."""
        return sum(self.buckets.values())

    def percentile_ms(self, share: float) -> float:
        """The value that `share` (0 to 1) of the values do not exceed, milliseconds; 0 when empty."""
        total = self.count
        if not total:
            return 0.0
        rank, seen = max(1, ceil(share * total - 1e-6)), 0
        for bucket in sorted(self.buckets):
            seen += self.buckets[bucket]
            if seen >= rank:
                return min(value_of(bucket), self.max_us) / 1_000
        return self.max_us / 1_000

    def summary_ms(self) -> dict[str, float]:
        """p50, p90, p99, p999 and max, milliseconds."""
        figures = {name: round(self.percentile_ms(share), 3) for name, share in PERCENTILES.items()}
        return {**figures, "max": round(self.max_us / 1_000, 3)}


def merged(parts: Iterable[Histogram]) -> Histogram:
    """One histogram of many."""
    whole = Histogram()
    for part in parts:
        whole.merge(part)
    return whole


def merge_series(into: dict[int, Histogram], series: Mapping[int, Histogram]) -> None:
    """Merge histograms per second."""
    for second, part in series.items():
        into.setdefault(second, Histogram()).merge(part)
