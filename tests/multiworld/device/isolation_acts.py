"""Acts of members in the tests of worlds side by side; imports nothing but torch and multiworld."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import torch

from multiworld import MultiWorld, World
from multiworld.lab.context import Context
from tests.multiworld.device.members import DEVICE, SECONDS, Place, error_of, numbers, room, run


def leader(context: Context, place: Place, _: int, rounds: int) -> Any:
    """Member of the worlds a and b; what is on its way in a hangs, then fails, and b is used all the while."""

    async def main() -> Any:
        os.environ["NCCL_HOSTID"] = "host-0"
        async with MultiWorld(op_timeout=SECONDS) as mw:
            options: Any = {"store": place.store, "backend": place.backend, "device": DEVICE}
            a, b = await asyncio.gather(*(mw.join(name, 0, 2, **options) for name in ("a", "b")))
            tensor, large = numbers(1 << 12), room(1 << 22)
            for w in (a, b):
                await w.send(tensor, 1)
            context.send("met")
            await asyncio.to_thread(context.recv)
            hangs = asyncio.ensure_future(a.send(large, 1))
            pending = a.member.session.engine.operations
            while not any("to take the payload" in one.waiting_for() for one in tuple(pending)):
                await asyncio.sleep(0.001)
            await _there_and_back(b, tensor, rounds)
            assert not hangs.done()
            context.send("b goes on")
            error = await error_of(hangs)
            await _there_and_back(b, tensor, rounds)
            await b.send_object("over", 1)
            return type(error).__name__, error.__dict__["world"], error.__dict__["ranks"], b.state.value

    return run(main)


async def _there_and_back(w: World, tensor: torch.Tensor, rounds: int) -> None:
    for _ in range(rounds):
        await w.send(tensor, 1)
        await w.recv(tensor, 1)


def follower(context: Context, place: Place, rank: int, name: str, rounds: int) -> Any:
    """The other member of one of them."""

    async def main() -> Any:
        os.environ["NCCL_HOSTID"] = f"host-{rank}"
        async with MultiWorld(op_timeout=SECONDS) as mw:
            w = await mw.join(name, 1, 2, store=place.store, backend=place.backend, device=DEVICE)
            tensor, large = room(1 << 12), room(1 << 22)
            await w.recv(tensor, 0)
            context.send(os.getpid())
            if name == "a":
                await w.recv(large, 0)
            for _ in range(rounds):
                await w.recv(tensor, 0)
                await w.send(tensor, 0)
            return await w.recv_object(0), tensor.cpu()[-1].item()

    return run(main)
