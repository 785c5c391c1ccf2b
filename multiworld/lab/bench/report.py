"""The results of the bench, as frozen data."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from multiworld.lab.bench.load import Load
from multiworld.lab.bench.stats import Ratio, Spread


class Verdict(enum.Enum):
    """The verdict on a figure that was promised."""

    OK = "ok"
    MISSED = "missed"
    NOT_JUDGED = "not judged"


@dataclass(frozen=True, slots=True)
class Comparison:
    """One operation of one size, plain and as a world, in turns; times in seconds."""

    operation: str
    nbytes: int
    plain: Spread
    world: Spread
    ratio: Ratio

    def as_json(self) -> dict[str, Any]:
        times = {"plain_seconds": asdict(self.plain), "world_seconds": asdict(self.world)}
        return {"operation": self.operation, "bytes": self.nbytes, **times, "time_ratio": asdict(self.ratio)}


@dataclass(frozen=True, slots=True)
class Figure:
    """A promised figure, what was measured, and the verdict. A busy machine can spoil a ``timed`` one; a leak or a
    false alarm is one on any machine."""

    name: str
    wanted: str
    measured: str
    verdict: Verdict
    values: Mapping[str, Any] = field(default_factory=dict)
    timed: bool = True

    def under(self, load: Load) -> Figure:
        """The figure, not judged where it was missed while other programs kept the machine busy."""
        spoilt = self.verdict is Verdict.MISSED and self.timed and load.busy
        return replace(self, verdict=Verdict.NOT_JUDGED) if spoilt else self

    def as_json(self) -> dict[str, Any]:
        made = {"name": self.name, "wanted": self.wanted, "measured": self.measured}
        return {**made, "verdict": self.verdict.value, "values": dict(self.values)}


def judged(name: str, wanted: str, measured: str, good: bool, *, timed: bool = True, **values: Any) -> Figure:
    return Figure(name, wanted, measured, Verdict.OK if good else Verdict.MISSED, values, timed)


@dataclass(frozen=True, slots=True)
class BenchReport:
    """Comparisons in turns with plain torch.distributed, the promised figures, and where it was measured."""

    comparisons: tuple[Comparison, ...]
    figures: tuple[Figure, ...]
    facts: dict[str, str]

    @property
    def good(self) -> bool:
        return all(figure.verdict is not Verdict.MISSED for figure in self.figures)

    def as_json(self) -> dict[str, Any]:
        comparisons = [comparison.as_json() for comparison in self.comparisons]
        return {"facts": self.facts, "comparisons": comparisons, "figures": [one.as_json() for one in self.figures]}
