"""What threads of the process's first world do when worlds break: dumps, and questions to its store."""

from __future__ import annotations

import os
import time
from pathlib import Path

import fake
import torch.distributed as dist
from breakage import answer, launches
from world import World, delete

_TRACE = Path("trace_0")  # the file of rank 0, see the runner's environment
_PATIENCE = 20.0


def dumps(judge: str) -> tuple[str, dict[str, object]]:
    """Break worlds, and look at what is dumped.

    Args:
        judge: "again": the failure of a second world is dumped, too; "hangs": the file takes nothing, and the first
            world, whose thread dumps, can be destroyed all the same.
    """
    first, *others = (World() for _ in range(3))
    for world in (first, *others):
        world.run("all_reduce")
    if judge == "hangs":
        os.mkfifo(_TRACE)  # to open it for writing waits for a reader
        _break(others[0])
        time.sleep(3)  # nothing tells that the dump is under way; the monitor looks every second
        detail: dict[str, object] = {"deleted": answer(lambda: delete(first), _PATIENCE)}
        return ("OK" if detail["deleted"] == "returned" else "STALLED"), detail
    dumped = [_dumped_after(world) for world in others]
    return ("OK" if all(dumped) else "WRONG_RECORD"), {"dumped": dumped}


def _break(world: World) -> None:
    (comm,) = world.comms
    fake.inject("ncclAllReduce", fake.HOLD, comm=comm)
    world.start("all_reduce")
    fake.inject("ncclCommGetAsyncError", fake.FAIL, fake.REMOTE_ERROR, comm=comm)
    fake.await_true(world.is_aborted, _PATIENCE)


def _dumped_after(world: World) -> bool:
    _break(world)
    dumped = fake.await_true(lambda: _TRACE.exists() and _TRACE.stat().st_size > 0, _PATIENCE)
    time.sleep(1)  # the file is being written
    _TRACE.unlink(missing_ok=True)
    return dumped is not None


def store_gone() -> tuple[str, dict[str, object]]:
    """Take the store away from a world, watch the process, and use another world."""
    server = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
    client = dist.TCPStore("127.0.0.1", server.port, 2, is_master=False, wait_for_workers=False)
    bereft, healthy = World(store=client), World()  # only the first asks its store
    for world in (bereft, healthy):
        world.run("all_reduce")
    del server  # ends its daemon: every connection breaks
    detail: dict[str, object] = {"store": answer(lambda: client.check(["any"]))}
    if detail["store"] == "returned":
        return "NOT_INJECTED", detail
    time.sleep(5)  # the monitor asks the store every second; what must not happen is an end of the process
    return ("OK" if launches(healthy, detail) else "NOT_LAUNCHED"), detail
