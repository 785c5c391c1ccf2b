"""A collective that one member gives up: the members go on in step, or the world breaks for all of them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from free_port import free_port
from interrupts import WAITING, interrupted_at
from procs import cluster, wait_until
from table import SOON, members

from multiworld import (
    BrokenWorldException,
    InvalidArgument,
    LossReason,
    MultiWorld,
    OpTimeout,
    PeerLost,
    TensorMismatch,
    World,
    WorldState,
)
from multiworld.lab.context import Context
from multiworld.manager import WorldManager

SMALL, LARGE, VERY_LARGE = 4, 200_000, 2_000_000  # the larger ones run on Gloo


async def given_up(
    world: World, call: Callable[[], Awaitable[Any]], *, finished_by: Callable[[], Any] | None = None
) -> None:
    """Cancel a collective that is under way, or is ``finished_by`` the others while its caller is not awake yet."""
    engine, before = world.member.session.engine, set(world.member.session.engine.operations)
    task = asyncio.ensure_future(call())
    while not (begun := engine.operations - before):
        await asyncio.sleep(0)
    (operation,) = begun
    if finished_by is not None:  # nobody else moves the data meanwhile: the loop stands still
        finished_by()
        wait_until(lambda: moved(world) or operation.done, SOON, "it does not end")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def moved(world: World) -> bool:
    """Move what has come; never true."""
    world.member.session.bridge.drain(1)
    return False


def check_cancelled(world: World, by: int) -> None:
    """The world is broken, and says which member cancelled what."""
    wait_until(lambda: world.state is WorldState.BROKEN, SOON, "it does not break")
    failure = world.failure
    assert isinstance(failure, PeerLost)
    assert (failure.how, failure.ranks) == (LossReason.CANCELLED, (by,))
    assert f"rank {by} cancelled all_reduce" in failure.what


@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_a_repeated_all_reduce_has_no_wrong_sum(store: str, count: int) -> None:
    with members(store, 2) as ((first, second), pool):

        async def cancel_and_repeat() -> list[float]:
            await given_up(first, lambda: first.all_reduce(torch.full((count,), -1.0)))
            return [await summed(turn) for turn in range(5)]

        async def summed(turn: int) -> float:
            total = torch.full((count,), float(turn))
            await first.all_reduce(total)
            return float(total[0])

        def others() -> list[float]:
            totals = [torch.full((count,), 10.0 * turn) for turn in range(5)]
            for total in totals:
                second.sync.all_reduce(total)
            return [float(total[0]) for total in totals]

        with pytest.raises(PeerLost, match="cancelled all_reduce"):
            asyncio.run(cancel_and_repeat())
        with pytest.raises(PeerLost, match="cancelled all_reduce"):
            others()
        for world in (first, second):
            check_cancelled(world, 0)
        again = [pool.submit(world.sync.rejoin) for world in (first, second)]
        assert [call.result(20).generation for call in again] == [2, 2]
        totals = [torch.ones(count), torch.ones(count)]
        list(pool.map(lambda world, total: world.sync.all_reduce(total), (first, second), totals))
        assert [float(total[0]) for total in totals] == [2.0, 2.0]


def test_a_collective_that_ends_as_it_is_cancelled(store: str) -> None:
    with members(store, 2) as ((first, second), pool):
        others: list[Any] = []

        def finish() -> None:
            others.append(pool.submit(second.sync.all_reduce, torch.ones(SMALL)))

        asyncio.run(given_up(first, lambda: first.all_reduce(torch.ones(SMALL)), finished_by=finish))
        others[0].exception(SOON)  # it may have the sum, or may not
        for world in (first, second):
            check_cancelled(world, 0)


def test_members_outside_of_the_group_are_told_who_it_was(store: str) -> None:
    with members(store, 3) as (worlds, pool):
        waiting = pool.submit(worlds[2].sync.recv, torch.zeros(1), 1)
        group = worlds[0].group([0, 1])
        asyncio.run(given_up(worlds[0], lambda: group.all_reduce(torch.ones(SMALL))))
        for world in worlds:
            check_cancelled(world, 0)
        with pytest.raises(PeerLost, match="rank 0 cancelled all_reduce"):
            waiting.result(SOON)


@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_an_interrupted_wait_is_a_cancellation(store: str, count: int) -> None:
    with members(store, 2) as ((first, second), _):
        assert interrupted_at(0, WAITING, lambda: first.sync.all_reduce(torch.ones(count)))
        for world in (first, second):
            check_cancelled(world, 0)
        assert not first.member.session.engine.operations


def test_a_deadline_breaks_the_world_for_all(store: str) -> None:
    with members(store, 2) as ((first, second), _):
        with pytest.raises(OpTimeout, match="the deadline broke the world"):
            first.sync.all_reduce(torch.ones(SMALL), timeout=0.05)
        wait_until(lambda: second.failure is not None, SOON, "it is not told")  # what was sent might serve it first
        with pytest.raises(PeerLost, match="all_reduce was not done within"):
            second.sync.all_reduce(torch.ones(SMALL))


def test_messages_are_cancelled_without_breaking_anything(store: str) -> None:
    with members(store, 2) as ((first, second), pool):

        async def receive() -> float:
            await given_up(first, lambda: first.recv(torch.zeros(1), 1))
            await given_up(first, lambda: first.send(torch.zeros(1), 1))
            got, sending = torch.zeros(1), pool.submit(second.sync.send, torch.tensor([3.0]), 0)
            await first.recv(got, 1)
            sending.result(SOON)
            return got.item()

        assert asyncio.run(receive()) == 3.0
        assert [world.state for world in (first, second)] == [WorldState.ACTIVE] * 2


@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_a_collective_goes_on_where_that_is_asked_for(store: str, count: int) -> None:
    with MultiWorld() as one, MultiWorld() as other, members(f"{store}-x", 1) as (_, pool):
        homes = zip((one, other), range(2), strict=True)
        joining = [pool.submit(mw.sync.join, "w", rank, 2, store=store, on_cancel="finish") for mw, rank in homes]
        first, second = (call.result(20) for call in joining)
        total = torch.ones(count)

        async def cancel_and_go_on() -> None:
            await given_up(first, lambda: first.all_reduce(torch.ones(count)))
            await asyncio.to_thread(second.sync.all_reduce, total)
            assert bool((total == 2.0).all())
            next_one = asyncio.to_thread(second.sync.all_reduce, torch.ones(count))
            await asyncio.gather(next_one, first.all_reduce(total))

        asyncio.run(cancel_and_go_on())
        assert bool((total == 3.0).all())
        assert [world.state for world in (first, second)] == [WorldState.ACTIVE] * 2


@contextlib.contextmanager
def finishing(store: str, op_timeout: float) -> Iterator[tuple[World, World]]:
    """Two members whose cancelled collectives go on without them."""
    with MultiWorld() as one, MultiWorld() as other, ThreadPoolExecutor(2) as pool:

        def join(mw: MultiWorld, rank: int) -> World:
            return mw.sync.join("w", rank, 2, store=store, on_cancel="finish", op_timeout=op_timeout)

        first, second = pool.map(join, (one, other), range(2))
        yield first, second


def test_one_that_the_others_do_not_call_is_over_for_who_gave_it_up(store: str) -> None:
    with finishing(store, op_timeout=1.0) as (first, second):

        async def cancel() -> None:
            await given_up(first, lambda: first.all_reduce(torch.ones(LARGE)))
            with pytest.raises(TensorMismatch):
                await asyncio.to_thread(second.sync.all_reduce, torch.ones(LARGE + 1))
            await asyncio.gather(asyncio.to_thread(second.sync.barrier), first.barrier())

        asyncio.run(cancel())
        engine: Any = first.member.session.engine
        wait_until(lambda: not engine.operations, SOON, "it waits for ever")
        assert first.failure is None
        assert not vars(engine).get("_launching")


def test_nothing_stays_of_one_that_was_given_up_on_the_backend(store: str) -> None:
    with finishing(store, op_timeout=20.0) as (first, second):
        engine: Any = first.member.session.engine

        async def cancelled(given: torch.Tensor) -> bool:
            """Cancel it while the backend works on it, unless it has ended by then."""
            other = asyncio.ensure_future(asyncio.to_thread(second.sync.all_reduce, torch.ones(VERY_LARGE)))
            task = asyncio.ensure_future(first.all_reduce(given))
            while not (task.done() or any(one.running for one in engine.operations)):
                await asyncio.sleep(0)
            task.cancel()
            done, _ = await asyncio.wait({task})
            await other
            return all(one.cancelled() for one in done)

        async def main() -> None:
            while not await cancelled(torch.ones(VERY_LARGE)):
                pass
            await asyncio.gather(asyncio.to_thread(second.sync.barrier), first.barrier())

        asyncio.run(main())
        assert not engine.operations
        assert not vars(engine).get("_watched")  # of the compiled engine


def test_what_on_cancel_may_be(store: str) -> None:
    with MultiWorld() as mw, pytest.raises(InvalidArgument, match="'break' or 'finish'"):
        mw.sync.join("w", 0, 1, store=store, on_cancel="ignore")


def program_for_pymultiworld(context: Context, port: int, rank: int) -> float:
    async def main() -> float:
        manager = WorldManager()
        await manager.initialize_world("w", rank, 2, port=port)
        total, sums = torch.ones(SMALL), manager.communicator
        if rank == 0:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(sums.all_reduce(total, world_name="w"), 0.05)
        while not sums.is_broken("w"):
            await asyncio.sleep(0.005)
        with pytest.raises(BrokenWorldException):
            await sums.all_reduce(total, world_name="w")
        await manager.initialize_world("w", rank, 2, port=port)
        await sums.all_reduce(total, world_name="w")
        manager.cleanup()
        return float(total[0])

    return asyncio.run(asyncio.wait_for(main(), 40))


def test_programs_for_pymultiworld_see_a_broken_world() -> None:
    port = free_port()
    with cluster() as c:
        for rank in range(2):
            c.start(program_for_pymultiworld, port, rank)
        assert c.results() == [2.0, 2.0]
