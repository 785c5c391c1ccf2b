"""Durations in buckets."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from functools import partial

#: upper bounds of the buckets of operations, in seconds
OPERATION_BOUNDS = (50e-6, 100e-6, 250e-6, 500e-6, 1e-3, 2.5e-3, 0.01, 0.05, 0.25, 1.0, 5.0, 30.0, 60.0)


class Histogram:
    """Durations in buckets.

    Args:
        bounds: upper bounds of the buckets, in seconds, ascending; a last bucket without a bound is added.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.counts[bisect_left(self.bounds, seconds)] += 1
        self.total += seconds

    def add(self, other: Histogram) -> None:
        """Count those of ``other``, which has the same bounds."""
        self.counts = [mine + theirs for mine, theirs in zip(self.counts, other.counts, strict=True)]
        self.total += other.total


def operation_histograms() -> defaultdict[str, Histogram]:
    """Make empty histograms of operations, by name."""
    return defaultdict(partial(Histogram, OPERATION_BOUNDS))
