"""Acts of members in the test of the device's memory; imports nothing but torch and multiworld."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable
from typing import Any

import torch

from multiworld import P2P, World
from multiworld.lab.context import Context
from tests.multiworld.device.members import Place, numbers, room, run, world

_COUNT = 1 << 16
_TURNS = 3
#: a thread that served an operation may be in its last lines still
_PATIENCE_SECONDS = 5.0


def kept(_: Context, place: Place, rank: int) -> dict[str, int]:
    """Bytes on the device that are not free after each kind of operation, with the garbage collector off."""

    async def main() -> dict[str, int]:
        async with world(place, rank, 2) as w:
            await _turns(w, rank, _send)  # makes the communicators
            await w.barrier()
            gc.collect()
            gc.disable()
            try:
                return {act.__name__.strip("_"): await _left(w, rank, act) for act in _ACTS}
            finally:
                gc.enable()

    found: dict[str, int] = run(main)
    return found


async def _left(w: World, rank: int, act: Callable[[World, int], Awaitable[Any]]) -> int:
    await _turns(w, rank, act)
    until = time.monotonic() + _PATIENCE_SECONDS
    while (left := torch.cuda.memory_allocated()) and time.monotonic() < until:
        await asyncio.sleep(0.01)
    return left


async def _turns(w: World, rank: int, act: Callable[[World, int], Awaitable[Any]]) -> None:
    for _ in range(_TURNS):
        await act(w, rank)


async def _send(w: World, rank: int) -> None:
    await (w.send(numbers(_COUNT), 1) if rank == 0 else w.recv(room(_COUNT), 0))


async def _stream(w: World, rank: int) -> None:
    await (w.send(numbers(_COUNT), 1, stream=True) if rank == 0 else w.recv(room(_COUNT), 0, stream=True))
    await w.synchronize()


async def _with_shape(w: World, rank: int) -> None:
    await (w.send_tensor(numbers(_COUNT), 1) if rank == 0 else w.recv_tensor(0))


async def _batch(w: World, rank: int) -> None:
    await w.batch_p2p([P2P("send", numbers(_COUNT), 1 - rank), P2P("recv", room(_COUNT), 1 - rank)])


async def _any_source(w: World, rank: int) -> None:
    await (w.send(numbers(_COUNT), 1) if rank == 0 else w.recv(room(_COUNT)))


async def _all_reduce(w: World, rank: int) -> None:
    await w.all_reduce(numbers(_COUNT))


async def _all_gather(w: World, rank: int) -> None:
    await w.all_gather([room(_COUNT), room(_COUNT)], numbers(_COUNT))


_ACTS = _send, _stream, _with_shape, _batch, _any_source, _all_reduce, _all_gather
