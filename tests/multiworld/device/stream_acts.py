"""Acts of members in the tests of ``stream=True`` and of ends; imports nothing but torch and multiworld."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator
from typing import Any

from multiworld import BrokenWorldException, MultiWorld, World, WorldBroken
from multiworld.lab.context import Context
from tests.multiworld.device.members import DEVICE, SECONDS, Place, error_of, numbers, room, run, world


async def met(w: World, rank: int) -> None:
    """Exchange a message from rank 0 to 1, after which compiled code launches those that follow it."""
    await (w.send(room(4), 1) if rank == 0 else w.recv(room(4), 0))


def pipelined(context: Context, place: Place, rank: int, count: int) -> Any:
    """Process 0 enqueues all while its device does nothing, says so, and waits for the end."""

    async def main() -> Any:
        async with world(place, rank, 2) as w:
            tensors = [numbers(1 << 18, value) if rank == 0 else room(1 << 18) for value in range(count)]
            await w.all_reduce(room(4))
            await met(w, rank)
            context.send(os.getpid())
            await asyncio.to_thread(context.recv)
            for tensor in tensors:
                await (w.send(tensor, 1, stream=True) if rank == 0 else w.recv(tensor, 0, stream=True))
            context.send("enqueued")
            await w.synchronize()
            return [tensor.cpu()[0].item() for tensor in tensors]

    return run(main)


def fails_later(context: Context, place: Place, rank: int, then: str) -> Any:
    """Process 1 dies with a transfer that rank 0 has enqueued; ``then`` is where rank 0 hears of it."""

    async def main() -> Any:
        os.environ["NCCL_HOSTID"] = f"host-{rank}"
        async with MultiWorld(op_timeout=SECONDS) as mw:
            events = mw.events()
            w = await mw.join("w", rank, 2, store=place.store, backend=place.backend, device=DEVICE)
            tensor = room(1 << 22)
            await w.all_reduce(room(4))
            await met(w, rank)
            context.send(os.getpid())
            await asyncio.to_thread(context.recv)
            if rank == 1:
                await w.recv(tensor, 0, stream=True)
                context.send("enqueued")
                await asyncio.Event().wait()
            await w.send(tensor, 1, stream=True)
            context.send("enqueued")
            if then == "synchronize":
                error: Any = await error_of(w.synchronize())
            elif then == "next":
                error = await error_of(w.recv(tensor, 1))
            else:
                error = await _broken(events)
            threads = {thread.name for thread in threading.enumerate()}
            return type(error).__name__, error.world, "mw-hub" in threads

    return run(main)


def late(context: Context, place: Place, rank: int, in_a_thread: bool) -> Any:
    """Process 0 enqueues what is matched only after its caller has an operation for it, and says so."""

    async def main() -> Any:
        async with world(place, rank, 2) as w:
            await met(w, rank)
            await w.barrier()
            if rank:
                got = room(64)
                await w.recv_object(0, tag=5)
                await w.recv(got, 0, stream=True)
                await w.synchronize()
                return got.cpu()[0].item()
            context.send(os.getpid())
            await asyncio.to_thread(context.recv)
            send, sent, operations = w.sync.send, numbers(64, 7), w.member.session.engine.operations
            call = asyncio.to_thread(send, sent, 1, stream=True) if in_a_thread else w.send(sent, 1, stream=True)
            sending = asyncio.ensure_future(call)
            while not operations:
                await asyncio.sleep(0.001)
            await w.send_object("now", 1, tag=5)
            await sending
            context.send("enqueued")
            await w.synchronize()
            return len(operations)

    return run(main)


def forgotten(_: Context, place: Place, rank: int, count: int) -> Any:
    """Enqueue, and wait until nothing of that is held; whether compiled code launched all of it."""

    async def main() -> Any:
        async with world(place, rank, 2) as w:
            session, taken_in = w.member.session, []
            session.taken_in = lambda number: taken_in.append(number) or type(session).taken_in(session, number)
            await met(w, rank)
            await w.barrier()
            for value in range(count):
                await (w.send(numbers(64, value), 1, stream=True) if rank == 0 else w.recv(room(64), 0, stream=True))
            while session.engine.held:
                await asyncio.sleep(0.001)
            await w.barrier()
            return not taken_in, len(session.engine.operations), session.counters().operations

    return run(main)


def leaves(_: Context, place: Place, rank: int, count: int) -> Any:
    """Process 0 enqueues and leaves at once."""

    async def main() -> Any:
        async with world(place, rank, 2) as w:
            tensors = [numbers(1 << 18, value) if rank == 0 else room(1 << 18) for value in range(count)]
            if rank == 1:
                receives = [asyncio.ensure_future(w.recv(tensor, 0)) for tensor in tensors]
                await asyncio.sleep(0)
                await w.send_object("posted", 0)
                await asyncio.gather(*receives)
                return [tensor.cpu()[0].item() for tensor in tensors]
            await w.recv_object(1)
            for tensor in tensors:
                await w.send(tensor, 1, stream=True)
            await w.leave()
            return None

    return run(main)


def comes_back(_: Context, place: Place, rank: int, times: int) -> list[Any]:
    """The world is assembled again and again; what it leaves behind each time, and at the end."""

    def ours() -> list[str]:
        return sorted(thread.name for thread in threading.enumerate() if "nccl" in thread.name)

    async def main() -> list[Any]:
        found: list[Any] = []
        async with world(place, rank, 2) as w:
            for _ in range(times):
                tensor = numbers(8, rank)
                await w.all_reduce(tensor)
                await (w.send(tensor, 1) if rank == 0 else w.recv(tensor, 0))
                found.append(tensor.cpu()[0].item())
                await w.leave()  # a world that has all its members is not left by `rejoin`
                await w.rejoin()
        for _ in range(int(SECONDS * 100)):  # their threads end in the background
            if not ours():
                break
            await asyncio.sleep(0.01)
        return [found, ours()]

    result: list[Any] = run(main)
    return result


async def _broken(events: AsyncIterator[Any]) -> BrokenWorldException:
    async for event in events:
        if isinstance(event, WorldBroken):
            return event.failure
    raise AssertionError("no event")
