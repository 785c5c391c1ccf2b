"""What chaos showed: a story per fault, and the promises of the fault model with what was seen of them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import asdict, dataclass, field
from typing import Any

from multiworld.lab.chaos.plan import Fault, Plan
from multiworld.lab.chaos.workload import Notice
from multiworld.lab.injector import Fired


@dataclass(frozen=True, slots=True)
class Story:
    """One fault and what came of it.

    Attributes:
        fault: as planned.
        fired: how it was proven.
        concerned: worlds that must break.
        notices: who noticed what, until all was well again.
        back_after: seconds until all were back; None if they were not in time.
        others_slowest: longest round of a world that is not concerned, in seconds, from the fault to the recovery.
    """

    fault: Fault
    fired: tuple[Fired, ...]
    concerned: tuple[str, ...]
    notices: tuple[Notice, ...]
    back_after: float | None
    others_slowest: float = 0.0

    @property
    def breaks(self) -> list[Notice]:
        """The notices of a break."""
        return [notice for notice in self.notices if notice.what == "broken"]

    def delays(self, without: Collection[int] = ()) -> list[float]:
        """Seconds from the fault to each notice of a break, by workers other than these."""
        return [notice.at - self.fired[0].at for notice in self.breaks if notice.worker not in without]

    def cells(self) -> tuple[str, ...]:
        """For a table: at, fault, worker, proof, noticed by, first, last, all back."""
        struck = {self.fault.worker, self.fault.second}
        delays = self.delays([worker for worker in struck if worker is not None])
        who = sorted({notice.worker for notice in self.breaks} - struck)
        first, last = (f"{min(delays) * 1e3:,.0f} ms", f"{max(delays) * 1e3:,.0f} ms") if delays else ("", "")
        back = "" if not self.concerned else "NEVER" if self.back_after is None else f"{self.back_after:.2f} s"
        by = f"{len(delays)} in {len({n.world for n in self.breaks})} worlds, workers {who}" if delays else "nobody"
        worker = str(self.fault.worker) if self.fault.second is None else f"{self.fault.worker}, {self.fault.second}"
        what = f"{self.fault.kind.value} {self.fault.world}".strip()
        return f"{self.fault.at:.1f} s", what, worker, self.fired[0].proof, by, first, last, back

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        made = asdict(self)
        made["fault"]["kind"] = self.fault.kind.value
        return made


@dataclass(frozen=True, slots=True)
class Promise:
    """One promise of the fault model, and whether it was kept."""

    name: str
    kept: bool
    seen: str
    evidence: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ChaosReport:
    """Everything.

    Attributes:
        plan: that was played.
        stories: a story per fault.
        promises: with what was seen of them.
        facts: where and under what load.
    """

    plan: Plan
    stories: tuple[Story, ...]
    promises: tuple[Promise, ...]
    facts: dict[str, str]

    @property
    def good(self) -> bool:
        """Whether every promise was kept."""
        return all(promise.kept for promise in self.promises)

    def as_json(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "facts": self.facts,
            "plan": self.plan.as_json(),
            "stories": [story.as_json() for story in self.stories],
            "promises": [asdict(promise) for promise in self.promises],
        }
