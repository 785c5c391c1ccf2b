"""Shutdowns of process groups, as destroy_process_group() asks for them: healthy, with a dead peer, and aborted."""

from __future__ import annotations

import datetime

import fake
from breakage import Call, answer, launches, pair
from ending import abort_of
from world import World, settle

_PATIENCE = 20.0


def run(hangs: bool) -> tuple[str, dict[str, object]]:
    """Shut a world down, and use another one.

    Args:
        hangs: whether ncclCommFinalize waits for a peer that has died since the last operation.
    """
    ending, healthy = pair(timeout=datetime.timedelta(seconds=4))
    (comm,) = ending.comms
    if hangs:
        fake.inject("ncclCommFinalize", fake.HANG, comm=comm)
    detail: dict[str, object] = {"shutdown": answer(ending.group._shutdown, _PATIENCE)}
    detail["calls"] = {site: fake.calls(site) for site in ("ncclCommFinalize", "ncclCommDestroy", "ncclCommAbort")}
    if not launches(healthy, detail) or detail["other world"] != "returned":
        return "NOT_LAUNCHED", detail
    if detail["shutdown"] != "returned":
        return "STALLED", detail
    destroyed = hangs or (fake.calls("ncclCommFinalize") and fake.calls("ncclCommDestroy"))
    return ("OK" if destroyed else "BROKEN"), detail


def aborted(
    pending: bool, inject: list[tuple[str, int, int]], first: str = "shutdown"
) -> tuple[str, dict[str, object]]:
    """Abort a world while it is shut down, and use another one.

    Args:
        pending: whether an operation is under way, which the shutdown waits for.
        inject: (site, action, code) for the communicator that is ended.
        first: "shutdown" (the abort comes while it waits) or "abort" (the shutdown comes after it).
    """
    ending, healthy = pair()
    settle()
    (comm,) = ending.comms
    for site, action, code in inject:
        fake.inject(site, action, code, comm=comm)
    if pending:
        fake.inject("ncclAllReduce", fake.HOLD, comm=comm)
        ending.start("all_reduce")
    detail: dict[str, object] = {}
    if first == "abort":
        detail["abort"] = answer(abort_of(ending.group), _PATIENCE)
    shutdown = Call(ending.group._shutdown)
    if first == "shutdown":
        fake.await_true(lambda: fake.calls("ncclCommFinalize") > 0, 1)  # the patched one flushes before, unseen
        detail["abort"] = answer(abort_of(ending.group), _PATIENCE)
    detail["shutdown"] = shutdown.answer(_PATIENCE)
    return _judged(ending, healthy, detail), detail


def _judged(ending: World, healthy: World, detail: dict[str, object]) -> str:
    if not launches(healthy, detail) or detail["other world"] != "returned":
        return "NOT_LAUNCHED"
    if "no answer" in (detail["abort"], detail["shutdown"]):
        return "STALLED"
    fake.lift("ncclCommFinalize", "ncclCommAbort")  # their threads go on
    detail["ended after"] = fake.await_true(lambda: all(map(fake.has_ended, ending.comms)), _PATIENCE / 4)
    if fake.misused():
        return "USED_AFTER_FREE"
    return "LEAKED" if detail["ended after"] is None else "OK"
