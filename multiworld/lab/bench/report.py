"""The results of the bench, as frozen data: what was measured, how it is spread, and what others took meanwhile.

The kernel counts what all programs take (``/proc/stat``) and what this one takes, with its children that have ended.
The difference is what the others took. The load average says less: it counts this program too, and lags by a minute.
"""

from __future__ import annotations

import enum
import os
import random
import resource
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

#: others may take this share of all processors before what is measured says nothing
_BUSY_SHARE = 0.1
#: fields of the first line of /proc/stat that are work of programs: user, nice, system, steal; see proc_stat(5)
_FIELDS = (1, 2, 3, 8)


@dataclass(frozen=True, slots=True)
class Load:
    """The load by others: ``others`` processors on average, of ``cores``."""

    others: float
    cores: int

    @property
    def busy(self) -> bool:
        return self.others > _BUSY_SHARE * self.cores

    def __str__(self) -> str:
        took = f"other programs took {self.others:.2f} of {self.cores} processors meanwhile"
        return f"{took}: a figure that misses its limit is not judged" if self.busy else took


class LoadMeter:
    """Counts from its making on."""

    def __init__(self) -> None:
        self._start = self._now()

    def read(self) -> Load:
        """Return the load by others so far; children of ours that have not ended count as others."""
        wall, all_programs, ours = (now - then for now, then in zip(self._now(), self._start, strict=True))
        return Load(max(0.0, all_programs - ours) / wall if wall else 0.0, os.cpu_count() or 1)

    @staticmethod
    def _now() -> tuple[float, float, float]:
        fields = Path("/proc/stat").read_text(encoding="utf-8").split("\n", 1)[0].split()
        used = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        ours = sum(item.ru_utime + item.ru_stime for item in used)
        return time.monotonic(), sum(int(fields[i]) for i in _FIELDS) / os.sysconf("SC_CLK_TCK"), ours


_RESAMPLES = 2000
_CONFIDENCE = 0.95


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which ``share`` (0 to 1) of ``values`` lie, interpolated."""
    return float(torch.tensor(values, dtype=torch.float64).quantile(share))


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


class Verdict(str, enum.Enum):
    """The verdict on a figure that was promised."""

    OK = "ok"
    MISSED = "missed"
    NOT_JUDGED = "not judged"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One operation of one size, plain and as a world, in turns; times in seconds."""

    operation: str
    bytes: int
    plain_seconds: Spread
    world_seconds: Spread
    time_ratio: Ratio


@dataclass(frozen=True, slots=True)
class Figure:
    """A promised figure, what was measured, and the verdict. A busy machine can spoil a ``timed`` one; a leak or a
    false alarm is one on any machine."""

    name: str
    wanted: str
    measured: str
    verdict: Verdict
    values: dict[str, Any] = field(default_factory=dict)
    timed: bool = True

    def under(self, load: Load) -> Figure:
        """The figure, not judged where it was missed while other programs kept the machine busy."""
        spoilt = self.verdict is Verdict.MISSED and self.timed and load.busy
        return replace(self, verdict=Verdict.NOT_JUDGED) if spoilt else self


def judged(name: str, wanted: str, measured: str, good: bool, *, timed: bool = True, **values: Any) -> Figure:
    return Figure(name, wanted, measured, Verdict.OK if good else Verdict.MISSED, values, timed)


@dataclass(frozen=True, slots=True)
class BenchReport:
    """Comparisons in turns with plain torch.distributed, the promised figures, and where it was measured."""

    facts: dict[str, str]
    comparisons: tuple[Comparison, ...]
    figures: tuple[Figure, ...]

    @property
    def good(self) -> bool:
        return all(figure.verdict is not Verdict.MISSED for figure in self.figures)
