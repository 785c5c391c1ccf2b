"""A process group on which nothing is pending is shut down, as destroy_process_group() does."""

from __future__ import annotations

import datetime

import fake
from breakage import answer
from world import World

_PATIENCE = 20.0


def run(hangs: bool) -> tuple[str, dict[str, object]]:
    """Shut a world down, and use another one.

    Args:
        hangs: whether ncclCommFinalize waits for a peer that has died since the last operation.
    """
    limit = datetime.timedelta(seconds=4)
    ending, healthy = World(timeout=limit), World()
    for world in (ending, healthy):
        world.run("all_reduce")
    (comm,) = ending.comms
    if hangs:
        fake.inject("ncclCommFinalize", fake.HANG, comm=comm)
    detail: dict[str, object] = {"shutdown": answer(ending.group._shutdown, _PATIENCE)}
    detail["calls"] = {site: fake.calls(site) for site in ("ncclCommFinalize", "ncclCommDestroy", "ncclCommAbort")}
    before = fake.launched()
    detail["other world"] = answer(lambda: healthy.run("all_reduce"))
    if detail["other world"] != "returned" or fake.launched() == before:
        return "NOT_LAUNCHED", detail
    if detail["shutdown"] != "returned":
        return "STALLED", detail
    destroyed = hangs or (fake.calls("ncclCommFinalize") and fake.calls("ncclCommDestroy"))
    return ("OK" if destroyed else "BROKEN"), detail
