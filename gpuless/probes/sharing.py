"""One world's pending operation, and what other worlds of the device share with it."""

from __future__ import annotations

import gc

import fake
from breakage import answer, break_world
from ending import abort_of
from world import World, forget, settle, tensor

_PATIENCE = 5.0  # seconds for the barrier
_EACH = 3.0  # seconds for the operation of one of many worlds


def barrier() -> tuple[str, dict[str, object]]:
    """Leave an operation pending on one world, and wait for a barrier of the other."""
    breakage = break_world([], within=0, broken="second", until="", aborts=False)
    breakage.detail["barrier"] = answer(lambda: breakage.healthy.run("barrier"), _PATIENCE)
    return ("OK" if breakage.detail["barrier"] == "returned" else "STALLED"), breakage.detail


def streams(worlds: int, again: bool = False) -> tuple[str, dict[str, object]]:
    """Leave an operation pending on the first world, and wait for an operation of each other world.

    Args:
        worlds: how many; torch's pool has 32 streams per device and priority.
        again: make them one after the other instead, and look at the number of streams.
    """
    if again:
        counts = []
        for _ in range(worlds):
            _use_and_abort()
            gc.collect()
            counts.append(fake.streams())
        return ("OK" if counts[-1] <= counts[1] else "LEAKED"), {"streams": counts}
    made = [World() for _ in range(worlds)]
    for world in made:
        world.run("all_reduce")
    first, *others = made
    fake.inject("ncclAllReduce", fake.HOLD, comm=min(first.comms))
    first.start("all_reduce")
    # The current stream waits for the operation, and the copy for the stream.
    stalled = [
        number
        for number, world in enumerate(others, 1)
        if answer(lambda world=world: (world.run("all_reduce"), tensor(1).cpu()), _EACH) != "returned"
    ]
    return ("STALLED" if stalled else "OK"), {"stalled": stalled, "worlds": worlds}


def _use_and_abort() -> None:
    world = World()
    world.run("all_reduce")
    settle()
    abort_of(world.group)()
    forget(world)
