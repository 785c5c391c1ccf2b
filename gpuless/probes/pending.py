"""An operation is under way when its world breaks; the watchdog has to deal with it."""

from __future__ import annotations

import time

from breakage import answer, break_world, raising
from world import tensor


def run(
    inject: list[tuple[str, int, int]],
    window: float = 3.0,
    within: float = 12.0,  # 2.0's watchdog looks every ten seconds
    broken: str = "second",
    until: str = "",
    aborts: bool = True,
    judge: str = "next call",
    timeout: float = 0,
    operation: str = "all_reduce",
    following: str = "all_reduce",
    patience: float = 5,
    backend: str = "classic",
) -> tuple[str, dict[str, object]]:
    """Break a world, watch the process, and use both worlds again.

    Args:
        inject, within, broken, until, aborts, timeout, operation, backend: see `breakage.break_world`.
        window: seconds the process has to stay alive after the fault was dealt with.
        judge: what decides: the world's "next call" or wait() of the pending operation ("wait") has to raise;
            or the "stream" has to be usable after such a wait().
        following: the broken world's next operation.
        patience: seconds for that operation.
    """
    breakage = break_world(inject, within, broken, until, aborts, timeout, operation, backend)
    detail = breakage.detail
    time.sleep(window)  # no event to wait for: what must not happen is an end of the process
    if not breakage.look_at_other_world():
        return "NOT_LAUNCHED", detail
    detail["next call"] = answer(lambda: breakage.sick.run(following), patience)
    detail["wait"] = answer(breakage.work.wait)
    # A wait() that makes the current stream wait blocks it without end where NCCL cannot abort.
    detail["stream"] = answer(lambda: tensor(1).cpu())
    if aborts and detail["aborted after"] is None:
        return "NOT_ABORTED", detail
    if judge == "stream":
        return ("OK" if detail["stream"] == "returned" else "STALLED"), detail
    return raising(detail[judge]), detail
