"""Percentiles, and intervals by bootstrap; no more than the bench needs."""

from __future__ import annotations

import random
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

_RESAMPLES = 2000
_CONFIDENCE = 0.95


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` (0 to 1) of ``values`` lie, interpolated."""
    ordered = sorted(values)
    place = share * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


@dataclass(frozen=True, slots=True)
class Spread:
    """The distribution of values: how many, and their 50th, 90th, 99th percentile and maximum."""

    count: int
    p50: float
    p90: float
    p99: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        p50, p90, p99 = (percentile(values, share) for share in (0.5, 0.9, 0.99))
        return cls(len(values), p50, p90, p99, max(values))


@dataclass(frozen=True, slots=True)
class Ratio:
    """A ratio with its 95 % interval, over ``rounds`` paired rounds."""

    value: float
    low: float
    high: float
    rounds: int

    @property
    def text(self) -> str:
        return f"{self.value:.3f} [{self.low:.3f}, {self.high:.3f}]"


def paired_ratio(numerators: Sequence[float], denominators: Sequence[float]) -> Ratio:
    """Median of the ratios of paired rounds, with a bootstrap interval over the rounds; repeatable."""
    ratios = [a / b for a, b in zip(numerators, denominators, strict=True)]
    draw = random.Random(0)  # noqa: S311 - resampling is no secret
    medians = [statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(_RESAMPLES)]
    tail = (1 - _CONFIDENCE) / 2
    low, high = percentile(medians, tail), percentile(medians, 1 - tail)
    return Ratio(statistics.median(ratios), low, high, len(ratios))
