"""Event loops: a world serves one, goes on in the next, and refuses those that are not asyncio's."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import torch
from procs import cluster

from multiworld import MultiWorld, WrongContext
from multiworld.lab.context import Context


def _two_loops(context: Context, store: str, rank: int) -> str:
    mw = MultiWorld()

    async def first() -> None:
        w = await mw.join("w", rank, 2, store=store)
        await w.barrier()

    async def second() -> str:
        with pytest.raises(WrongContext) as caught:
            await mw["w"].barrier()
        return str(caught.value)

    one, other = asyncio.new_event_loop(), asyncio.new_event_loop()
    one.run_until_complete(first())
    text = other.run_until_complete(second())
    mw["w"].sync.barrier()  # a thread may wait for it all the same
    one.run_until_complete(mw["w"].barrier())
    mw.sync.close()
    with pytest.raises(WrongContext):
        mw.sync.join("again", 0, 1, store=store)
    one.close(), other.close()
    return text


def test_another_event_loop_is_refused_while_the_first_lives(store: str) -> None:
    with cluster() as c:
        c.start(_two_loops, store, 0), c.start(_two_loops, store, 1)
        for text in c.results():
            assert "another event loop" in text
            assert "'w'" in text


def _loop_after_loop(context: Context, store: str, rank: int) -> list[float]:
    """Joins in one ``asyncio.run``, leaves a receive pending there, and goes on in others and after a rejoin."""
    mw, got = MultiWorld(), []

    async def join() -> None:
        w = await mw.join("w", rank, 2, store=store)
        pending.append(asyncio.ensure_future(w.recv(torch.zeros(1), 1 - rank, tag=9)))
        await w.barrier()

    async def exchange() -> None:
        t = torch.zeros(300_000)  # more than a socket takes at once: the loop has to watch for room
        await asyncio.gather(mw["w"].send(torch.full((300_000,), float(rank)), 1 - rank), mw["w"].recv(t, 1 - rank))
        got.append(t[-1].item())

    pending: list[Any] = []
    asyncio.run(join())
    asyncio.run(exchange())
    asyncio.run(exchange())
    mw["w"].sync.barrier()
    asyncio.run(_rejoin(mw))
    asyncio.run(exchange())
    mw.sync.close()
    return got


async def _rejoin(mw: MultiWorld) -> None:
    await mw["w"].rejoin()


def test_a_world_goes_on_in_the_next_event_loop_once_the_last_is_closed(store: str) -> None:
    with cluster() as c:
        c.start(_loop_after_loop, store, 0), c.start(_loop_after_loop, store, 1)
        assert c.results() == [[1.0] * 3, [0.0] * 3]


def test_a_stream_of_events_is_read_where_it_was_asked_for() -> None:
    async def ask() -> Any:
        return mw.events()

    with MultiWorld() as mw:
        stream = asyncio.run(ask())
        with pytest.raises(WrongContext, match="another event loop"):
            asyncio.run(_next(stream))


async def _next(stream: Any) -> Any:
    return await anext(stream)


UNDER_TRIO: dict[str, Callable[[Any], Any]] = {
    "join": lambda w: w.member.owner.join("other", 0, 1, store="file:///nowhere/store"),
    "events": lambda w: _listen(w.member.owner),
    "close": lambda w: w.member.owner.close(),
    "async with": lambda w: w.member.owner.__aenter__(),
    "barrier": lambda w: w.barrier(),
    "recv": lambda w: w.recv(torch.zeros(1), 0),
    "all_reduce": lambda w: w.all_reduce(torch.zeros(1)),
    "rejoin": lambda w: w.rejoin(),
    "leave": lambda w: w.leave(),
}


async def _listen(mw: MultiWorld) -> None:
    mw.events()


@pytest.mark.parametrize("call", UNDER_TRIO)
def test_under_trio_an_awaitable_is_refused_and_the_synchronous_twins_work(store: str, call: str) -> None:
    trio = pytest.importorskip("trio", reason="trio is not installed")

    async def main() -> None:
        w = await trio.to_thread.run_sync(lambda: mw.sync.join("w", 0, 1, store=store))
        with pytest.raises(WrongContext, match=r"trio\.to_thread\.run_sync") as caught:
            await UNDER_TRIO[call](w)
        assert caught.value.operation == call
        await trio.to_thread.run_sync(w.sync.barrier)  # the world is as it was

    with MultiWorld() as mw:
        trio.run(main)
