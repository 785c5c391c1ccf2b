"""Acts of members in the tests of a device that is lost; imports nothing but torch and multiworld."""

from __future__ import annotations

import asyncio
import gc
from typing import Any

import torch

from multiworld import DeviceFailed, DeviceLost, MultiWorld, World, WorldBroken
from multiworld.lab.context import Context
from tests.multiworld.device.members import DEVICE, Place, numbers, room, run, world

SECONDS = 30.0


def loses_its_device(context: Context, place: Place, rank: int) -> dict[str, Any]:
    """A member of two worlds on a device and of one on Gloo; the device is lost in an operation of the first."""

    async def main() -> dict[str, Any]:
        async with world(place, rank, 2, "first") as first, MultiWorld(op_timeout=SECONDS) as mw:
            second = await mw.join("second", rank, 2, store=place.store, backend=place.backend, device="cuda:0")
            gloo = await mw.join("third", rank, 2, store=place.store)
            events = mw.events()
            await _exchange(first, rank)
            await _exchange(second, rank)
            context.send("ready")
            await asyncio.get_running_loop().run_in_executor(None, context.recv)
            waiting = asyncio.ensure_future(second.recv(room(4), 1 - rank))
            errors = [await _error(_exchange(first, rank)), await _error(waiting)]
            heard = await asyncio.wait_for(_until_broken(events), SECONDS)
            await gloo.barrier()
            return {"errors": errors, "heard": heard}

    return run(main)


async def _exchange(w: World, rank: int) -> None:
    if rank:
        await w.send(numbers(4), 0)
    else:
        await w.recv(room(4), 1)


async def _until_broken(events: Any) -> list[tuple[str, str]]:
    heard = []
    async for event in events:
        if isinstance(event, (DeviceLost, WorldBroken)):
            heard.append((type(event).__name__, event.world))
        if isinstance(event, WorldBroken):
            return heard
    return heard


async def _error(call: Any) -> tuple[str, str | None, Any]:
    try:
        await call
    except Exception as error:  # noqa: BLE001 - the outcome
        found = error.device if isinstance(error, DeviceFailed) else str(error)
        return type(error).__name__, getattr(error, "world", None), found
    return "none", None, None


def takes_on_a_lost_device(context: Context, place: Place, rank: int) -> tuple[tuple[str, str | None, Any], str]:
    """Rank 1 has received a tensor, and finds the device lost as it takes it; what each was told, and what broke."""

    async def main() -> tuple[tuple[str, str | None, Any], str]:
        async with world(place, rank, 2) as w:
            for _ in range(2):
                await _hand_over(w, rank)
            context.send("ready")
            await asyncio.to_thread(context.recv)
            error = await _error(w.recv_tensor(0) if rank else _send_and_wait(w))
            return error, type(w.failure).__name__

    return run(main)


async def _send_and_wait(w: World) -> None:
    await w.send_tensor(numbers(4), 1)
    await w.recv(room(4), 1)


async def _hand_over(w: World, rank: int) -> None:
    if rank:
        await w.recv_tensor(0)
    else:
        await w.send_tensor(numbers(4), 1)


def takes_in_another_stream(context: Context, place: Place, rank: int) -> list[float] | None:
    """Rank 1 takes a tensor in another stream than the one in which it asked for it, and frees it on a lost device."""

    async def main() -> list[float] | None:
        async with world(place, rank, 2) as w:
            if rank == 0:
                await w.send_tensor(numbers(4), 1)
                await w.recv_object(1)
                return None
            receive = asyncio.ensure_future(w.recv_tensor(0))
            await asyncio.sleep(0)  # asked for in the default stream
            stream = torch.cuda.Stream(DEVICE)
            before = torch.cuda.current_stream(DEVICE)
            torch.cuda.set_stream(stream)
            taken = await receive
            values = [float(value) for value in taken.cpu()]
            torch.cuda.set_stream(before)
            await w.send_object("taken", 0)
        context.send("taken")
        await asyncio.to_thread(context.recv)
        del taken, receive
        gc.collect()
        return values

    return run(main)
