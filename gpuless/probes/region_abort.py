"""A user ends a world while a thread is in ncclGroupEnd, with an operation of that world queued in the group."""

from __future__ import annotations

from functools import partial

import fake
from breakage import Call, launches, pair
from ending import abort_of
from world import World, settle

_PATIENCE = 20.0


def run(ends: bool, shuts_down: bool = False) -> tuple[str, dict[str, object]]:
    """Open a region, hold its end, and end the world.

    Args:
        ends: whether the end of the group goes on after a while, or never (a peer that it connects to is dead).
        shuts_down: whether the world is shut down, or aborted.
    """
    sick, healthy = pair()
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
    ending = Call(sick.group._shutdown if shuts_down else abort_of(sick.group))
    has_ended = partial(_has_ended, sick)
    if ends:
        detail["ended within the end of the group after"] = fake.await_true(has_ended, 2)
        fake.lift("ncclGroupEnd")
        detail["region"] = leaving.answer()
    detail["ended after"] = fake.await_true(has_ended, _PATIENCE)
    detail["end"] = ending.answer(_PATIENCE)
    return _judged(healthy, ends, detail), detail


def _has_ended(world: World) -> bool:
    return all(map(fake.has_ended, world.comms))


def _judged(healthy: World, ends: bool, detail: dict[str, object]) -> str:
    if fake.misused():
        return "USED_AFTER_FREE"
    if detail["end"] == "no answer" or (ends and detail["region"] == "no answer"):
        return "STALLED"
    if detail["ended after"] is None:
        return "NOT_ABORTED"
    return "OK" if launches(healthy, detail) and detail["other world"] == "returned" else "NOT_LAUNCHED"
