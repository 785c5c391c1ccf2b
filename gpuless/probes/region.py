"""Worlds that break, or that a user ends, while a coalescing region of theirs is open or is being ended."""

from __future__ import annotations

import time

import fake
from breakage import Call, answer, break_world, launches, pair
from ending import abort_of
from world import World, settle

_PATIENCE = 5.0
_TO_END = 20.0


def run(leave: str) -> tuple[str, dict[str, object]]:
    """Open a region on a world with a pending operation, let the watchdog find that it is broken, leave the region.

    Args:
        leave: "end" (endCoalescing) or "operation" (the region's next operation raises).
    """
    breakage = break_world([], within=0, broken="second", until="", aborts=False)
    group, detail = breakage.sick.group, breakage.detail
    way = breakage.sick.next_in_region if leave == "operation" else group._end_coalescing
    (comm,) = breakage.sick.comms

    def region() -> None:
        """All in one thread: NCCL's group is the thread's."""
        group._start_coalescing()
        breakage.sick.next_in_region()
        fake.inject("ncclCommGetAsyncError", fake.FAIL, fake.REMOTE_ERROR, comm=comm)
        fake.await_true(lambda: fake.fired("ncclCommGetAsyncError") > 0, _PATIENCE)
        time.sleep(1)  # until the watchdog has given the communicator up, or aborted it
        try:
            way()
        finally:
            detail["depth"] = fake.depth()

    detail["region"] = answer(region, 4 * _PATIENCE)
    detail["aborted after"] = fake.await_true(breakage.sick.is_aborted, 2 * _PATIENCE)
    detail["used after free"] = fake.misused()
    if detail["used after free"]:
        return "USED_AFTER_FREE", detail
    if detail["region"] == "no answer":
        return "STALLED", detail
    if detail["depth"]:
        return "GROUP_LEAKED", detail
    if not breakage.look_at_other_world():
        return "NOT_LAUNCHED", detail
    if detail["region"] == "returned":
        return "NO_EXCEPTION", detail
    return ("OK" if detail["aborted after"] is not None else "NOT_ABORTED"), detail


def ended(ends: bool, shuts_down: bool = False) -> tuple[str, dict[str, object]]:
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
    detail["in ncclGroupEnd after"] = fake.await_true(lambda: fake.hanging("ncclGroupEnd") > 0, _TO_END)
    ending = Call(sick.group._shutdown if shuts_down else abort_of(sick.group))

    def has_ended() -> bool:
        return all(map(fake.has_ended, sick.comms))

    if ends:
        detail["ended within the end of the group after"] = fake.await_true(has_ended, 2)
        fake.lift("ncclGroupEnd")
        detail["region"] = leaving.answer()
    detail["ended after"] = fake.await_true(has_ended, _TO_END)
    detail["end"] = ending.answer(_TO_END)
    return _judged(healthy, ends, detail), detail


def _judged(healthy: World, ends: bool, detail: dict[str, object]) -> str:
    if fake.misused():
        return "USED_AFTER_FREE"
    if detail["end"] == "no answer" or (ends and detail["region"] == "no answer"):
        return "STALLED"
    if detail["ended after"] is None:
        return "NOT_ABORTED"
    return "OK" if launches(healthy, detail) and detail["other world"] == "returned" else "NOT_LAUNCHED"
