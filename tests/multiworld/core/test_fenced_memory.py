"""The same promise at full speed: real processes, the engine's thread, and pages that end the process when touched.

Each operation lends memory that is fenced off in the moment in which the operation returned or raised.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import suppress
from typing import Any

import pytest
import torch
from fence import Fenced
from procs import cluster

from multiworld import BrokenWorldException, MultiWorld, OpTimeout, World
from multiworld.lab.context import Context

COUNT = 4 << 20  # 16 MB: more than the sockets hold, and for collectives more than travels in one piece
#: from its start to after its end; a nightly run stops at twice as many moments
TURNS = range(0, 12, 2)
Expected = type[BaseException] | tuple[type[BaseException], ...]
Operation = Callable[[World, torch.Tensor, torch.Tensor], Coroutine[Any, Any, Any]]

OPERATIONS: dict[str, Operation] = {
    "send": lambda w, lent, _: w.send(lent, 1 - w.rank),
    "recv": lambda w, lent, _: w.recv(lent, 1 - w.rank),
    "all_reduce": lambda w, lent, _: w.all_reduce(lent),
    "broadcast": lambda w, lent, _: w.broadcast(lent, 0),
    "all_gather": lambda w, lent, spare: w.all_gather([lent, spare], torch.ones(COUNT)),
    "all_to_all_single": lambda w, lent, spare: w.all_to_all_single(lent, spare),
}
OTHER_SIDE = {"send": "recv", "recv": "send"}


async def fenced(call: Awaitable[Any], memory: Fenced, expected: Expected) -> bool:
    """Await it; nothing may touch ``memory`` any more when that is over. Whether it raised what is expected."""
    try:
        await call
    except expected:
        memory.close()
        return True
    memory.close()
    return False


def cancels(context: Context, store: str, name: str, turns: range) -> int:
    """Stop waiting a little later each time; how often that was in time."""

    async def main() -> int:
        stopped = 0
        async with MultiWorld() as mw:
            world = await mw.join("w", 0, 2, store=store, on_cancel="finish")
            for turn in turns:
                memory, spare = Fenced(COUNT, 1.0), torch.ones(COUNT)
                call = asyncio.wait_for(OPERATIONS[name](world, memory.tensor, spare), 0.0005 * turn)
                stopped += await fenced(call, memory, asyncio.TimeoutError)
            context.send("done")
            await asyncio.to_thread(context.recv)
        return stopped

    return asyncio.run(main())


def goes_on(context: Context, store: str, name: str) -> None:
    """Call the other side until told that nobody is left to answer."""

    async def main() -> None:
        async with MultiWorld() as mw:
            world = await mw.join("w", 1, 2, store=store)

            async def answer() -> None:
                while True:
                    await OPERATIONS[name](world, torch.ones(COUNT), torch.ones(COUNT))

            answering = asyncio.ensure_future(answer())
            await asyncio.to_thread(context.recv)
            answering.cancel()
            with suppress(asyncio.CancelledError, BrokenWorldException):
                await answering
            context.send("stopped")
            await asyncio.to_thread(context.recv)

    asyncio.run(main())


@pytest.fixture
def turns(whole: bool) -> range:
    return range(TURNS.stop) if whole else TURNS


@pytest.mark.parametrize("name", OPERATIONS)
def test_cancelled(store: str, name: str, turns: range) -> None:
    with cluster() as c:
        one = c.start(cancels, store, name, turns)
        other = c.start(goes_on, store, OTHER_SIDE.get(name, name))
        assert one.recv() == "done"
        one.send("end")
        assert one.result() > 0
        other.send("stop")
        assert other.recv() == "stopped"
        other.send("end")


def breaks(context: Context, store: str, rank: int, name: str, by: str, turns: range) -> int:
    """Have the world broken by rank 1 in the middle of the operation, and join it again; how often it raised."""

    async def main() -> int:
        raised = 0
        async with MultiWorld() as mw:
            world = await mw.join("w", rank, 2, store=store)
            for turn in turns:
                memory, spare = Fenced(COUNT, 1.0), torch.ones(COUNT)
                operation = asyncio.ensure_future(OPERATIONS[name](world, memory.tensor, spare))
                call = asyncio.ensure_future(fenced(operation, memory, (BrokenWorldException, asyncio.CancelledError)))
                if rank == 1:
                    await asyncio.sleep(0.0007 * turn)
                    operation.cancel() if by == "cancel" else world.abort("in the middle")
                raised += await call
                world.abort("the next turn")  # what was to break it may have come too late
                await world.rejoin(timeout=20)
        return raised

    return asyncio.run(main())


@pytest.mark.parametrize("by", ["abort", "cancel"])
@pytest.mark.parametrize("name", ["send", "all_reduce", "broadcast", "all_gather", "all_to_all_single"])
def test_broken(store: str, name: str, by: str, turns: range) -> None:
    with cluster() as c:
        c.start(breaks, store, 0, name, by, turns)
        c.start(breaks, store, 1, OTHER_SIDE.get(name, name), by, turns)
        assert sum(c.results(60)) > 0


def times_out(context: Context, store: str, rank: int, name: str) -> str:
    """A synchronous operation whose peer stops taking part in the middle of it."""
    memory = Fenced(COUNT, 1.0)
    with MultiWorld() as mw:
        world = mw.sync.join("w", rank, 2, store=store)
        try:
            if name == "send":
                world.sync.send(memory.tensor, 1, timeout=0.2)
            else:
                world.sync.recv(memory.tensor, 1, timeout=0.2)
        except OpTimeout:
            memory.close()
        context.send("timed out")
        context.recv()
    return "ended"


def takes_no_part(context: Context, store: str, name: str) -> str:
    """Start the other side, and let nobody move its data until the peer has given up."""

    async def main() -> str:
        async with MultiWorld() as mw:
            world = await mw.join("w", 1, 2, store=store)
            call = asyncio.ensure_future(OPERATIONS[name](world, torch.ones(COUNT), torch.ones(COUNT)))
            await asyncio.sleep(0)
            context.recv()  # blocks the event loop, on purpose
            with suppress(BrokenWorldException):
                await call
        return "ended"

    return asyncio.run(main())


@pytest.mark.parametrize("name", ["send", "recv"])
def test_timed_out_in_a_thread(store: str, name: str) -> None:
    with cluster() as c:
        one = c.start(times_out, store, 0, name)
        other = c.start(takes_no_part, store, OTHER_SIDE[name])
        assert one.recv() == "timed out"
        other.send("go on")
        assert other.result() == "ended"
        one.send("end")
        assert one.result() == "ended"


def leaves(context: Context, store: str) -> int:
    """Leave while a matched send is on its way, in one world after the other; how often it was still on its way.

    What was sent arrives in any case, from memory that is not the caller's.
    """

    async def main() -> int:
        left = 0
        async with MultiWorld() as mw:
            for turn in TURNS:
                memory = Fenced(COUNT, 1.0)
                world = await mw.join(f"w{turn}", 0, 2, store=store)
                call = asyncio.ensure_future(fenced(world.send(memory.tensor, 1), memory, BrokenWorldException))
                while not world.tally.sent[1]:
                    await asyncio.sleep(0)
                await world.leave()
                left += await call
        return left

    return asyncio.run(main())


def receives(context: Context, store: str) -> list[float]:
    sums = []
    with MultiWorld() as mw:
        for turn in TURNS:
            world = mw.sync.join(f"w{turn}", 1, 2, store=store)
            got = torch.zeros(COUNT)
            world.sync.recv(got, 0)
            sums.append(float(got.sum()))
    return sums


def test_left_with_a_send_on_its_way(store: str) -> None:
    with cluster() as c:
        leaving, receiving = c.start(leaves, store), c.start(receives, store)
        assert leaving.result() > 0
        assert receiving.result() == [COUNT] * len(TURNS)
