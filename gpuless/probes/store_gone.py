"""The store of the process's first world disappears, as when the rank that hosts it dies."""

from __future__ import annotations

import time

import torch.distributed as dist
from breakage import answer, launches
from world import World


def run(window: float = 5.0) -> tuple[str, dict[str, object]]:
    """Take the store away from a world, watch the process, and use another world.

    Args:
        window: seconds the process has to stay alive; the heartbeat monitor asks the store every second.
    """
    server = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
    client = dist.TCPStore("127.0.0.1", server.port, 2, is_master=False, wait_for_workers=False)
    bereft, healthy = World(store=client), World()  # only the first asks its store
    for world in (bereft, healthy):
        world.run("all_reduce")
    del server  # ends its daemon: every connection breaks
    detail: dict[str, object] = {"store": answer(lambda: client.check(["any"]))}
    if detail["store"] == "returned":
        return "NOT_INJECTED", detail
    time.sleep(window)  # no event to wait for: what must not happen is an end of the process
    return ("OK" if launches(healthy, detail) else "NOT_LAUNCHED"), detail
