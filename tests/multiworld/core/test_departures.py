"""A member leaves in good order: what all members have sent their part of is finished before the world breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
import torch
from procs import wait_until
from table import SOON, members

from multiworld import PeerLost, World, WorldState

SMALL, LARGE = 4, 200_000  # the larger one goes in parts
PIECE, MANY = 60_000, 60  # together more than sockets hold


def leaves_and_is_needed(first: World, third: World) -> None:
    """Rank 2 leaves, and rank 0 learns that it needs it."""
    third.sync.leave()
    with pytest.raises(PeerLost, match="rank 2 left") as caught:
        first.sync.barrier()
    assert (caught.value.how, caught.value.ranks) == ("left", (2,))


async def amid(world: World, calls: list[Callable[[], Awaitable[Any]]], meanwhile: Callable[[], None]) -> None:
    """Begin operations, read nothing of the others' until ``meanwhile`` has returned, and wait for their end."""
    tasks = [asyncio.ensure_future(call()) for call in calls]
    engine = world.member.session.engine
    while len(engine.operations) < len(calls):
        await asyncio.sleep(0)
    with ThreadPoolExecutor(1) as other:
        other.submit(meanwhile).result(60)  # the loop stands still
    wait_until(lambda: not engine.operations, SOON, "the news of the break does not end them")
    await asyncio.wait_for(asyncio.gather(*tasks), 20)


def check_broken(world: World) -> None:
    """The world ends all the same, and says why."""
    wait_until(lambda: world.state is WorldState.BROKEN, SOON, "it does not break")
    assert isinstance(world.failure, PeerLost)
    assert world.failure.ranks == (2,)
    assert "rank 2 left" in world.failure.what


def test_a_small_collective(store: str) -> None:
    with members(store, 3) as ((first, second, third), pool):
        totals = [torch.full((SMALL,), 10.0**rank) for rank in range(3)]

        def meanwhile() -> None:
            list(pool.map(lambda rank: (first, second, third)[rank].sync.all_reduce(totals[rank]), (0, 2)))
            leaves_and_is_needed(first, third)

        asyncio.run(amid(second, [lambda: second.all_reduce(totals[1])], meanwhile))
        assert [float(total[0]) for total in totals] == [111.0] * 3
        check_broken(second)


def test_collectives_whose_data_fills_the_sockets(store: str) -> None:
    """The member that breaks the world has not written all of its part yet."""
    with members(store, 3) as ((first, second, third), pool):
        got = [torch.zeros(PIECE) for _ in range(MANY)]

        def sends(world: World) -> None:
            for turn in range(MANY):
                world.sync.broadcast(torch.full((PIECE,), float(turn)), 0)

        def meanwhile() -> None:
            list(pool.map(sends, (first, third)))
            leaves_and_is_needed(first, third)

        asyncio.run(amid(second, [lambda piece=piece: second.broadcast(piece, 0) for piece in got], meanwhile))
        assert [(float(piece[0]), float(piece[-1])) for piece in got] == [(float(t), float(t)) for t in range(MANY)]
        check_broken(second)


def test_one_that_needs_the_leaving_member_ends_none_that_does_not(store: str) -> None:
    """A member has begun the next collective, too, as asynchronous callers do; the first ones are still to arrive."""
    with members(store, 3) as ((first, second, third), pool):
        got = [torch.zeros(PIECE) for _ in range(MANY)]

        def sends(world: World) -> None:
            for turn in range(MANY):
                world.sync.broadcast(torch.full((PIECE,), float(turn)), 0)

        def meanwhile() -> None:
            list(pool.map(sends, (first, third)))
            pool.submit(third.sync.leave).result(20)
            session = second.member.session

            def left() -> bool:
                session.hub.call_and_wait(lambda: session.bridge.drain(2))
                return 2 in session.departed

            wait_until(left, SOON, "its farewell does not come")

        async def next_one() -> None:
            with pytest.raises(PeerLost, match="rank 2 left"):
                await second.barrier()

        calls = [lambda piece=piece: second.broadcast(piece, 0) for piece in got]
        asyncio.run(amid(second, [*calls, next_one], meanwhile))
        assert [(float(piece[0]), float(piece[-1])) for piece in got] == [(float(t), float(t)) for t in range(MANY)]
        check_broken(second)


def test_a_message_that_was_sent(store: str) -> None:
    with members(store, 3) as ((first, second, third), _):
        got = torch.zeros(SMALL)

        def meanwhile() -> None:
            first.sync.send(torch.ones(SMALL), 1)
            leaves_and_is_needed(first, third)

        asyncio.run(amid(second, [lambda: second.recv(got, 0)], meanwhile))
        assert bool((got == 1.0).all())
        check_broken(second)


def test_a_collective_in_parts(store: str) -> None:
    """One member has its part, and leaves, before another one has named the place for its own."""
    with members(store, 3) as ((first, second, third), pool):
        tensors = [torch.full((LARGE,), 10.0**rank) for rank in range(3)]
        root = pool.submit(first.sync.broadcast, tensors[0], 0)

        async def stands_still() -> Future[Any]:
            task = asyncio.ensure_future(second.broadcast(tensors[1], 0))
            while not second.member.session.engine.operations:
                await asyncio.sleep(0)
            pool.submit(third.sync.broadcast, tensors[2], 0).result(20)
            pool.submit(third.sync.leave).result(20)
            needs = pool.submit(first.sync.barrier)
            wait_until(lambda: len(first.member.session.engine.operations) > 1 or needs.done(), SOON, "not called")
            assert not root.done()
            await asyncio.wait_for(task, 20)
            return needs

        needs = asyncio.run(stands_still())
        root.result(SOON)
        assert isinstance(needs.exception(SOON), PeerLost)
        assert all(bool((tensor == 1.0).all()) for tensor in tensors)
        check_broken(first)
        check_broken(second)


def test_an_idle_member_is_told_at_once(store: str) -> None:
    with members(store, 3) as ((first, second, third), _):
        leaves_and_is_needed(first, third)
        check_broken(second)


def test_what_the_leaving_member_gave_up_is_not_waited_for(store: str) -> None:
    with members(store, 3) as ((first, second, third), pool):
        calls = [pool.submit(world.sync.all_reduce, torch.ones(SMALL)) for world in (first, second)]
        wait_until(
            lambda: first.member.session.engine.operations and second.member.session.engine.operations,
            SOON,
            "not begun",
        )
        third.sync.leave()
        for call in calls:
            assert isinstance(call.exception(SOON), PeerLost)
        for world in (first, second):
            check_broken(world)
