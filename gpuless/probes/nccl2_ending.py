"""The caller ends a world of nccl2 while one of its operations is under way: nobody has noticed a fault yet."""

from __future__ import annotations

import time
from functools import partial

import fake
from breakage import answer, break_world
from world import delete, tensor

_PATIENCE = 8.0  # seconds to end a world


def run(
    how: str,
    inject: list[tuple[str, int, int]] | None = None,
    until: str = "",
    timeout: float = 0,
    operation: str = "all_reduce",
    judge: str = "wait",
) -> tuple[str, dict[str, object]]:
    """Hold an operation, end its world, ask the operation's work for its outcome, and use another world.

    Args:
        how: "abort", "shutdown" or "delete" (drop the last reference).
        inject, until, timeout, operation: see `breakage.break_world`.
        judge: "wait": wait() of the operation has to raise; "stream": and the current stream has to be usable after
            it; "ended": the end alone decides, and the work is not touched afterwards.
    """
    breakage = break_world(inject or [], 12, "second", until, False, timeout, operation, "nccl2")
    detail, sick = breakage.detail, breakage.sick
    (comm,) = sick.comms
    start = time.monotonic()
    detail["ended"] = answer(partial(delete, sick) if how == "delete" else getattr(sick.group, how), _PATIENCE)
    detail["seconds"] = round(time.monotonic() - start, 1)
    detail["aborted"] = fake.is_aborted(comm)
    time.sleep(2)  # no event to wait for: what must not happen is an end of the process
    if not breakage.look_at_other_world():
        return "NOT_LAUNCHED", detail
    if judge != "ended":
        detail["wait"] = answer(breakage.work.wait)
        detail["stream"] = answer(lambda: tensor(1).cpu())
    if detail["ended"] == "no answer":
        return "STALLED", detail
    if judge == "stream" and detail["stream"] == "no answer":
        return "STALLED", detail
    return ("NO_EXCEPTION" if detail.get("wait") == "returned" else "OK"), detail
