"""An operation is under way when its world breaks; the watchdog has to deal with it."""

from __future__ import annotations

import time

from breakage import answer, break_world
from world import tensor


def run(
    inject: list[tuple[str, int, int]],
    window: float = 3.0,
    within: float = 10.0,
    broken: str = "second",
    until: str = "",
    aborts: bool = True,
    waits: bool = False,
    timeout: float = 0,
    operation: str = "all_reduce",
    following: str = "all_reduce",
) -> tuple[str, dict[str, object]]:
    """Break a world, watch the process, and use both worlds again.

    Args:
        inject, within, broken, until, aborts, timeout, operation: see `breakage.break_world`.
        window: seconds the process has to stay alive after the fault was dealt with.
        waits: judge what wait() of the pending operation says; otherwise the world's next operation.
        following: the broken world's next operation.
    """
    breakage = break_world(inject, within, broken, until, aborts, timeout, operation)
    detail = breakage.detail
    time.sleep(window)  # no event to wait for: what must not happen is an end of the process
    if not breakage.look_at_other_world():
        return "NOT_LAUNCHED", detail
    detail["next call"] = answer(lambda: breakage.sick.run(following))
    detail["wait"] = answer(breakage.work.wait)
    # Not judged: wait() makes the current stream wait, for ever where NCCL cannot abort.
    detail["stream afterwards"] = answer(lambda: tensor(1).cpu())
    if aborts and detail["aborted after"] is None:
        return "NOT_ABORTED", detail
    judged = detail["wait" if waits else "next call"]
    return {"returned": "NO_EXCEPTION", "no answer": "STALLED"}.get(str(judged), "OK"), detail
