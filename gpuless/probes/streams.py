"""More worlds than CUDA has streams in torch's pool; one of them breaks."""

from __future__ import annotations

import gc

import fake
from breakage import answer
from world import World, forget, settle, tensor

_PATIENCE = 3.0  # seconds for one world's operation


def run(worlds: int, again: bool = False) -> tuple[str, dict[str, object]]:
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
        if answer(lambda world=world: (world.run("all_reduce"), tensor(1).cpu()), _PATIENCE) != "returned"
    ]
    return ("STALLED" if stalled else "OK"), {"stalled": stalled, "worlds": worlds}


def _use_and_abort() -> None:
    world = World()
    world.run("all_reduce")
    settle()
    world.group.abort() if hasattr(world.group, "abort") else world.group._shutdown()
    forget(world)
