"""A user aborts a world while a thread is in ncclGroupEnd, with an operation of that world queued in the group."""

from __future__ import annotations

import fake
from breakage import Call, answer
from ending import abort_of
from world import World, settle

_PATIENCE = 20.0


def run(ends: bool) -> tuple[str, dict[str, object]]:
    """Open a region, hold its end, and abort the world.

    Args:
        ends: whether the end of the group goes on after a while, or never (a peer that it connects to is dead).
    """
    sick, healthy = World(), World()
    for world in (sick, healthy):
        world.run("all_reduce")
    settle()
    detail: dict[str, object] = {}

    def region() -> None:
        """All in one thread: NCCL's group is the thread's."""
        sick.group._start_coalescing()
        sick.next_in_region()
        fake.inject("ncclGroupEnd", fake.HANG, times=1)
        sick.group._end_coalescing()

    leaving = Call(region)
    detail["in ncclGroupEnd after"] = fake.await_true(lambda: fake.hanging("ncclGroupEnd") > 0, _PATIENCE)
    aborting = Call(abort_of(sick.group))
    if ends:
        detail["aborted within the end"] = fake.await_true(sick.is_aborted, 2)
        fake.lift("ncclGroupEnd")
        detail["region"] = leaving.answer()
    detail["aborted after"] = fake.await_true(sick.is_aborted, _PATIENCE)
    detail["abort"] = aborting.answer(_PATIENCE)
    return _judged(healthy, ends, detail), detail


def _judged(healthy: World, ends: bool, detail: dict[str, object]) -> str:
    if fake.misused():
        return "USED_AFTER_FREE"
    if detail["abort"] == "no answer" or (ends and detail["region"] == "no answer"):
        return "STALLED"
    if detail["aborted after"] is None:
        return "NOT_ABORTED"
    before = fake.launched()
    detail["other world"] = answer(lambda: healthy.run("all_reduce"))
    return "OK" if detail["other world"] == "returned" and fake.launched() > before else "NOT_LAUNCHED"
