"""A process group on which nothing is pending is shut down, as destroy_process_group() does."""

from __future__ import annotations

import datetime

import fake
from breakage import answer, launches, pair

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
