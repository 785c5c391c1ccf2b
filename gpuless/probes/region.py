"""A world breaks while a coalescing region is open, in whose NCCL group one of its operations is queued."""

from __future__ import annotations

import time

import fake
from breakage import answer, break_world

_PATIENCE = 5.0


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
