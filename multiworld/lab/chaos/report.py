"""The results of chaos: a story per fault, and the promises of the fault model with what was seen of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from multiworld.lab.chaos.plan import Fault, FaultKind, Plan
from multiworld.lab.chaos.workload import Notice, Tally
from multiworld.lab.injector import Fired


@dataclass(frozen=True, slots=True)
class Story:
    """One fault and what came of it: worlds that must break, who noticed what, seconds until all were back (None: not
    in time), and the longest round of a world that is not concerned, from the fault to the recovery.
    """

    fault: Fault
    fired: tuple[Fired, ...]
    concerned: tuple[str, ...]
    notices: tuple[Notice, ...]
    back_after: float | None
    others_slowest: float = 0.0

    @property
    def struck(self) -> set[int]:
        """Workers that need not notice: they were killed, or did it themselves."""
        return {worker for worker in (self.fault.worker, self.fault.second) if worker is not None}

    @property
    def breaks(self) -> list[Notice]:
        return [notice for notice in self.notices if notice.what == "broken"]

    def delays(self) -> list[float]:
        """Seconds from the fault to each notice of a break, by workers that were not struck."""
        return [notice.at - self.fired[0].at for notice in self.breaks if notice.worker not in self.struck]

    def cells(self) -> tuple[str, ...]:
        """For a table: at, fault, worker, proof, noticed by, first, last, all back."""
        delays = self.delays()
        who = sorted({notice.worker for notice in self.breaks} - self.struck)
        first, last = (f"{min(delays) * 1e3:,.0f} ms", f"{max(delays) * 1e3:,.0f} ms") if delays else ("", "")
        back = "" if not self.concerned else "NEVER" if self.back_after is None else f"{self.back_after:.2f} s"
        by = f"{len(delays)} in {len({n.world for n in self.breaks})} worlds, workers {who}" if delays else "none"
        worker = str(self.fault.worker) if self.fault.second is None else f"{self.fault.worker}, {self.fault.second}"
        what = f"{self.fault.kind.value} {self.fault.world}".strip()
        return f"{self.fault.at:.1f} s", what, worker, self.fired[0].proof, by, first, last, back


@dataclass(frozen=True, slots=True)
class Promise:
    """One promise of the fault model, and whether it was kept."""

    name: str
    kept: bool
    seen: str
    evidence: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ChaosReport:
    """The plan, a story per fault, the promises with what was seen of them, and where it was played."""

    facts: dict[str, str]
    plan: Plan
    stories: tuple[Story, ...]
    promises: tuple[Promise, ...]

    @property
    def good(self) -> bool:
        return all(promise.kept for promise in self.promises)


#: bounds of noticing, with room for a machine that does other things too; the figures themselves are the bench's
NOTICED_SECONDS = {FaultKind.KILL: 1.0, FaultKind.STOP: 2.0, FaultKind.LEAVE: 1.0, FaultKind.ABORT: 1.0}
#: the longest that a world may pause for a fault it has nothing to do with
OTHERS_SECONDS = 1.0


def judge(
    plan: Plan, stories: Sequence[Story], stray: Sequence[Notice], tallies: Mapping[int, Tally], deaths: Sequence[str]
) -> tuple[Promise, ...]:
    """All promises. ``stray`` breaks belong to no fault; ``deaths`` are workers that ended without having been
    killed."""
    calm = [s for s in stories if not s.concerned]
    false_alarms = [f"{s.fault.kind.value}: {_describe(n)}" for s in calm for n in s.breaks]
    lost = [f"{_of(s)} at {s.fault.at} s" for s in stories if s.back_after is None]
    slow = [s for s in stories if s.others_slowest > OTHERS_SECONDS]
    paused = [f"{_of(s)}: another world took {s.others_slowest:.2f} s" for s in slow]
    slowest = f"longest round elsewhere {max((s.others_slowest for s in stories), default=0.0) * 1e3:,.0f} ms"
    surprises = [what for tally in tallies.values() for what in tally.surprises]
    rounds = sum(len(times) for tally in tallies.values() for times in tally.rounds.values())
    parts = []
    for kind in NOTICED_SECONDS:
        delays = sorted(d for story in stories if story.fault.kind is kind for d in story.delays())
        if delays:
            parts.append(f"{kind.value}: p50 {delays[len(delays) // 2] * 1e3:,.0f} ms, last {delays[-1] * 1e3:,.0f} ms")
    wrong = [_describe(notice) for notice in stray]
    for story in stories:
        wrong += [f"{story.fault.kind.value}: {_describe(n)}" for n in story.breaks if n.world not in story.concerned]
    return (
        _promise("only worlds of the struck worker break", wrong, "no break elsewhere"),
        _promise("every other member notices, in time", _late(plan, stories), "; ".join(parts)),
        _promise("slow, busy and mistaken workers break nothing", false_alarms, "no false alarm"),
        _promise("every world comes back", lost, _back(stories)),
        _promise("no data is wrong", [w for t in tallies.values() for w in t.wrong], f"{rounds:,} rounds were right"),
        _promise("no process dies but the killed", list(deaths), "none did"),
        _promise("nothing unexpected is raised", surprises, "only typed errors"),
        _promise("other worlds go on meanwhile", paused, slowest),
    )


def _promise(name: str, evidence: Iterable[str], otherwise: str) -> Promise:
    found = list(evidence)
    return Promise(name, not found, f"{len(found)} times: {found[0]}" if found else otherwise, found)


def _describe(notice: Notice) -> str:
    return f"worker {notice.worker} in {notice.world}: {notice.error} {notice.ranks} {notice.how}"


def _late(plan: Plan, stories: Sequence[Story]) -> list[str]:
    late = []
    for story in stories:
        limit = NOTICED_SECONDS.get(story.fault.kind, 0.0)
        for world in story.concerned:
            for worker in set(plan.worlds[world]) - story.struck:
                delays = [n.at - story.fired[0].at for n in story.breaks if (n.worker, n.world) == (worker, world)]
                what = f"{story.fault.kind.value} of {story.fault.worker}: worker {worker} in {world}"
                if not delays:
                    late.append(f"{what} never noticed")
                elif min(delays) > limit:
                    late.append(f"{what} noticed after {min(delays):.2f} s, not {limit} s")
    return late


def _of(story: Story) -> str:
    return f"{story.fault.kind.value} of {story.fault.worker}"


def _back(stories: Sequence[Story]) -> str:
    times = sorted(story.back_after for story in stories if story.concerned and story.back_after is not None)
    return f"p50 {times[len(times) // 2]:.2f} s, last {times[-1]:.2f} s after the fault" if times else "none broke"
