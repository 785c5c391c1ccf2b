"""The application gets rid of a world that is broken or about to be; that may not end or block the process either."""

from __future__ import annotations

import time
from collections.abc import Callable

from breakage import Breakage, Call, answer, break_world, raising
from world import TorchObject, delete

_PATIENCE = 20.0  # seconds to get rid of a world


def run(
    how: str,
    inject: list[tuple[str, int, int]],
    until: str = "",
    aborts: bool = True,
    timeout: float = 0,
    judge: str = "ending",
    backend: str = "classic",
) -> tuple[str, dict[str, object]]:
    """Break a world, end it, and use the other one.

    Args:
        how: "abort" (its method, `_shutdown` before 2.6, `_abort` in 2.1), "shutdown" (what destroy_process_group()
            calls, from 2.6 on) or "delete" (drop the last reference).
        inject, until, aborts, timeout, backend: see `breakage.break_world`.
        judge: what has to raise, besides the world's "ending" that has to return: "wait" (wait() of the pending
            operation, called afterwards) or "waiting" (the same of a barrier, called before and under way).
    """
    operation = "barrier" if judge == "waiting" else "all_reduce"
    breakage = break_world(inject, 12, "second", until, aborts, timeout, operation, backend)
    waiting = _wait_inside(breakage.work) if judge == "waiting" else None
    breakage.detail["ended"] = answer(_way(breakage, how), _PATIENCE)
    time.sleep(2)  # no event to wait for: what must not happen is an end of the process
    if judge == "wait":
        breakage.detail["wait"] = answer(breakage.work.wait)
    if waiting:
        breakage.detail["waiting"] = waiting.answer(_PATIENCE)
    if not breakage.look_at_other_world():
        return "NOT_LAUNCHED", breakage.detail
    if breakage.detail["ended"] == "no answer":
        return "STALLED", breakage.detail
    return raising(breakage.detail.get(judge)), breakage.detail


def _wait_inside(work: TorchObject) -> Call:
    """Call wait(), of an operation for which the CPU waits."""
    waiting = Call(work.wait)
    time.sleep(0.5)  # nothing tells that the call is inside torch
    return waiting


def abort_of(group: TorchObject) -> Callable[[], object]:
    names = ("abort", "_shutdown", "_abort")
    way: Callable[[], object] = next(getattr(group, name) for name in names if hasattr(group, name))
    return way


def _way(breakage: Breakage, how: str) -> Callable[[], object]:
    if how != "delete":
        way: Callable[[], object] = abort_of(breakage.sick.group) if how == "abort" else breakage.sick.group._shutdown
        return way

    def dropped() -> None:
        breakage.work = None
        delete(breakage.sick)

    return dropped
