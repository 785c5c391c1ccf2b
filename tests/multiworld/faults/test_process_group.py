"""A world as a process group of torch.distributed, on every backend: tensors of its device, futures, a death, the way
back."""

from __future__ import annotations

import asyncio
from typing import Any

import torch
import torch.distributed as dist

from multiworld import PeerLost
from multiworld.lab.context import Context
from tests.multiworld.faults import acts
from tests.multiworld.faults.bounds import GONE_SECONDS, JOIN_SECONDS
from tests.multiworld.faults.scene import DEATH, Scene, lost

WORLD = "struck"


def _on_device(context: Context, values: list[float]) -> tuple[torch.Tensor, Any]:
    """Make a tensor by a copy, since kernels do not run on imitated devices; and the group."""
    world = context.mw[WORLD]
    return torch.tensor(values).to(world.member.torch_device), world.process_group


def through_torch(context: Context) -> dict[str, list[float]]:
    """Call functions of torch.distributed; what each leaves."""
    world = context.mw[WORLD]
    rank, size = world.rank, world.size
    total, pg = _on_device(context, [rank + 1.0, 1.0])
    dist.all_reduce(total, group=pg)
    later, _ = _on_device(context, [rank + 1.0])
    (reduced,) = dist.all_reduce(later, group=pg, async_op=True).get_future().wait()
    root, _ = _on_device(context, [rank + 10.0])
    dist.broadcast(root, group_src=1, group=pg) if _takes_group_ranks() else pg.broadcast([root], 1).wait()
    own, _ = _on_device(context, [float(rank)])
    whole, _ = _on_device(context, [-1.0] * size)
    dist.all_gather_into_tensor(whole, own, group=pg)
    message, _ = _on_device(context, [7.0 + rank])
    (pg.send if rank else pg.recv)([message], 1 - rank, 0).wait()
    dist.barrier(group=pg)
    found = {"total": total, "future": reduced, "broadcast": root, "gathered": whole, "message": message}
    return {name: [float(value) for value in tensor.cpu()] for name, tensor in found.items()}


def _takes_group_ranks() -> bool:
    return tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 7)


def waits(context: Context, asks: str) -> None:
    """Reduce, and wait for the work or its future; a peer takes no part."""
    tensor, pg = _on_device(context, [1.0])
    with pg.typed():
        work = dist.all_reduce(tensor, group=pg, async_op=True)
        context.mark("operating")
        work.wait() if asks == "work" else work.get_future().wait()


async def rejoin(context: Context) -> int:
    """Go on in the next generation, with the same group."""
    pg = context.mw[WORLD].process_group
    await asyncio.to_thread(pg.rejoin, timeout=JOIN_SECONDS)
    return int(pg.generation)


def test_collectives_futures_and_a_death(scene: Scene) -> None:
    """Two members, one of which is killed twice: while the other waits for a work, and for its future."""
    survivor, victim = scene.workers(2)
    scene.join(WORLD, [survivor, victim])
    for generation, asks in enumerate(("work", "future"), start=2):
        for rank, found in enumerate(scene.everywhere([survivor, victim], through_torch)):
            assert found == {
                "total": [3.0, 2.0],
                "future": [3.0],
                "broadcast": [11.0],
                "gathered": [0.0, 1.0],
                "message": [8.0],
            }, rank
        waiting = survivor.start(waits, asks)
        survivor.wait_for("operating")
        fired = scene.injector.kill(victim)
        error = lost(waiting.outcome(), WORLD, 1, GONE_SECONDS, fired, DEATH)
        assert isinstance(error, PeerLost)
        victim = scene.worker()
        joining = scene.start_join(WORLD, victim, 1, 2)
        assert survivor.run(rejoin) == generation
        assert joining.result(JOIN_SECONDS) == (1, generation)
    scene.works(WORLD, [survivor, victim])
    assert survivor.run(acts.standing, WORLD).generation == 3
