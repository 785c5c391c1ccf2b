"""Measured figures, each with the limit that the project promises."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from pathlib import Path

import msgspec
from rich.markup import escape
from rich.table import Table

from build.paths import atomic_write
from multiworld.lab.bench.report import Load, paired_ratio


class Verdict(Enum):
    """Verdicts of a figure about its promise."""

    KEPT = "kept"
    MISSED = "missed"
    OPEN = "not decided"
    NOT_JUDGED = "not judged"


_STYLES = {Verdict.KEPT: "green", Verdict.MISSED: "bold red", Verdict.OPEN: "yellow", Verdict.NOT_JUDGED: "yellow"}


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure.

    Attributes:
        name: what was measured.
        value: the median of the samples, or the one number there is.
        low, high: the ends of the spread.
        limit: what it may be at most.
        unit: of value, spread and limit.
        how: number of samples and what the spread is.
        interval: whether the spread is where the true value lies, so that a limit inside of it decides nothing.
    """

    name: str
    value: float
    low: float
    high: float
    limit: float
    unit: str
    how: str
    interval: bool = False

    @property
    def verdict(self) -> Verdict:
        if self.interval and self.low <= self.limit < self.high:
            return Verdict.OPEN
        return Verdict.KEPT if self.value <= self.limit else Verdict.MISSED

    def verdict_under(self, load: Load) -> Verdict:
        """Return the verdict; on a busy machine, a missed limit is not judged."""
        return Verdict.NOT_JUDGED if load.busy and self.verdict is Verdict.MISSED else self.verdict


def of_samples(name: str, samples: Sequence[float], limit: float, unit: str) -> Figure:
    """Return median, least and greatest of `samples`."""
    how = "1 run" if len(samples) == 1 else f"{len(samples)} runs, least to greatest"
    return Figure(name, statistics.median(samples), min(samples), max(samples), limit, unit, how)


def of_ratios(name: str, ours: Sequence[float], theirs: Sequence[float], limit: float) -> Figure:
    """Return the median of the ratios of samples of the same rounds, with its 95 % bootstrap interval."""
    ratio = paired_ratio(ours, theirs)
    how = f"{ratio.rounds} interleaved rounds, 95 % interval"
    return Figure(name, ratio.value, ratio.low, ratio.high, limit, "x", how, interval=True)


def table(figures: Sequence[Figure], title: str, load: Load) -> Table:
    made = Table(title=title, title_justify="left")
    for column in ("figure", "limit", "measured", "spread", "how", "verdict"):
        made.add_column(
            column, justify="right" if column in ("limit", "measured", "spread") else "left", overflow="fold"
        )
    for item in figures:
        spread = "" if item.low == item.high else f"{_number(item.low)} to {_number(item.high)}"
        verdict = item.verdict_under(load)
        limit, value = f"{_number(item.limit)} {item.unit}", f"{_number(item.value)} {item.unit}"
        made.add_row(escape(item.name), limit, value, spread, item.how, f"[{_STYLES[verdict]}]{verdict.value}[/]")
    return made


def _number(value: float) -> str:
    """Return three significant digits, without exponents."""
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def write(figures: Sequence[Figure], path: Path, load: Load) -> None:
    rows = [asdict(item) | {"verdict": item.verdict_under(load).value} for item in figures]
    with atomic_write(path) as part:
        part.write_bytes(msgspec.json.format(msgspec.json.encode(rows), indent=2) + b"\n")
