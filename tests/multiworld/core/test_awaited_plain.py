"""Plain messages and broadcasts that a task awaits, before they have become operations with a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from interrupts import interrupted_at
from procs import wait_until
from table import members

from multiworld import MultiWorld, OpTimeout, PeerLost, TensorMismatch, World, WorldClosed
from multiworld.errors import LossReason
from multiworld.session import bridge

SECONDS = 10.0
COUNT = 1_000
#: steps of the interpreter from one interrupt to the next
STRIDE = 7
MOST_STEPS = 4_000
DONE = 1


@contextmanager
def two(store: str) -> Iterator[tuple[World, World, ThreadPoolExecutor]]:
    """Members that have exchanged a message: their tensors are known to be plain."""
    with members(store, 2) as ((first, second), pool):
        sending = pool.submit(second.sync.send, torch.ones(1), 0)
        first.sync.recv(torch.zeros(1), 1)
        sending.result(SECONDS)
        yield first, second, pool


async def begun(world: World, call: Awaitable[Any]) -> tuple[asyncio.Task[Any], int]:
    """Begin a call that waits, and is no operation yet; its number."""
    world.member.enter_loop("the first operation in this loop")
    task = asyncio.ensure_future(call)
    await asyncio.sleep(0)
    (number,) = world.member.session.bridge._plain
    assert not world.member.session.engine.operations
    return task, number


async def given_up(task: asyncio.Task[Any]) -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_receive_that_is_cancelled_leaves_the_message_to_the_next(store: str) -> None:
    with two(store) as (first, second, pool):

        async def receive() -> tuple[float, float]:
            late, got = torch.zeros(1), torch.zeros(1)
            await given_up((await begun(first, first.recv(late, 1)))[0])
            await given_up((await begun(first, first.send(late, 1)))[0])
            sending = pool.submit(second.sync.send, torch.tensor([3.0]), 0)
            await first.recv(got, 1)
            sending.result(SECONDS)
            assert not first.member.session.bridge._plain
            return late.item(), got.item()

        assert asyncio.run(receive()) == (0.0, 3.0)


def test_a_message_that_came_to_a_task_that_is_cancelled_before_it_wakes_is_kept(store: str) -> None:
    with two(store) as (first, second, pool):
        session = first.member.session

        async def receive() -> float:
            task, number = await begun(first, first.recv(torch.zeros(1), 1))
            sending = pool.submit(second.sync.send, torch.tensor([3.0]), 0)

            def ended() -> bool:
                session.bridge.drain(1)
                return bool(session.engine.native.outcome(number)[0] == DONE)

            wait_until(ended, SECONDS, "nothing comes")  # while the loop stands still
            await given_up(task)
            sending.result(SECONDS)
            got = torch.zeros(1)
            await first.recv(got, 1)
            return got.item()

        assert asyncio.run(receive()) == 3.0


@pytest.mark.timeout(120)
def test_an_interrupted_broadcast_ends_the_world_or_was_none(tmp_path: Path) -> None:
    ended = hit = 0
    for step in range(0, MOST_STEPS, STRIDE):
        with two(f"file://{tmp_path}/{step}") as (first, second, pool):
            sending, got = pool.submit(second.sync.broadcast, torch.ones(1), 1), torch.zeros(1)
            broadcast = lambda got=got, first=first: first.sync.broadcast(got, 1)  # noqa: E731
            hit = interrupted_at(step, ("plain_messages.py",), broadcast)
            if first.failure is None and not got.item():
                broadcast()
            if first.failure is None:
                sending.result(SECONDS)
                assert got.item() == 1.0
            else:
                assert isinstance(first.failure, PeerLost)
                assert first.failure.how is LossReason.CANCELLED
                ended += 1
            if not hit:
                break
    assert not hit, "not every step was tried"
    assert ended, "no interrupt came in the middle"


def test_who_waits_for_long_has_a_deadline(store: str) -> None:
    with two(store) as (first, _, _):

        async def receive() -> None:
            task, _ = await begun(first, first.recv(torch.zeros(1), 1, timeout=1.0))
            await task

        with pytest.raises(OpTimeout, match="waiting for rank 1 to send"):
            asyncio.run(receive())


@pytest.mark.parametrize("what", ["recv", "broadcast"])
@pytest.mark.parametrize("who", ["we", "the peer"])
def test_who_waits_hears_of_the_end_of_the_world(
    store: str, who: str, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bridge, "PATIENCE", 60.0)  # it is told, and does not find out
    with two(store) as (first, second, _):

        async def receive() -> None:
            got = torch.zeros(1)
            task, _ = await begun(first, first.recv(got, 1) if what == "recv" else first.broadcast(got, 1))
            (first if who == "we" else second).abort("a test")
            await task

        with pytest.raises(WorldClosed if who == "we" else PeerLost, match="a test"):
            asyncio.run(receive())
        assert not first.member.session.bridge._plain


def test_a_broadcast_that_is_cancelled_breaks_the_world(store: str) -> None:
    with two(store) as (first, second, _):

        async def cancel() -> None:
            await given_up((await begun(first, first.broadcast(torch.zeros(1), 1)))[0])

        asyncio.run(cancel())
        assert isinstance(first.failure, PeerLost)
        assert first.failure.how is LossReason.CANCELLED
        wait_until(lambda: isinstance(second.failure, PeerLost), SECONDS, "the other member does not hear of it")


def test_a_broadcast_goes_on_without_its_caller_where_that_is_asked_for(store: str) -> None:
    with MultiWorld() as one, MultiWorld() as other, ThreadPoolExecutor(2) as pool:
        homes = zip((one, other), range(2), strict=True)
        joining = [pool.submit(mw.sync.join, "w", rank, 2, store=store, on_cancel="finish") for mw, rank in homes]
        first, second = (call.result(SECONDS) for call in joining)

        def everywhere(value: float) -> float:
            got = torch.zeros(1)
            sending = pool.submit(second.sync.broadcast, torch.full((1,), value), 1)
            first.sync.broadcast(got, 1)
            sending.result(SECONDS)
            return got.item()

        assert everywhere(1.0) == 1.0  # the tensors are known to be plain from here on
        late = torch.zeros(1)

        async def cancel() -> None:
            await given_up((await begun(first, first.broadcast(late, 1)))[0])

        asyncio.run(cancel())
        second.sync.broadcast(torch.full((1,), 2.0), 1)
        assert everywhere(3.0) == 3.0
        assert late.item() == 0.0


def test_a_broadcast_that_is_plain_on_one_side_is_the_same_collective(store: str) -> None:
    with two(store) as (first, second, pool):
        for length in (1, 1_000, 128 * 1024, 128 * 1024 + 1):  # about the longest that travels with its fingerprint
            for mode in (torch.no_grad, torch.inference_mode):  # which is left to the general way
                got = torch.zeros(length)
                sending = pool.submit(second.sync.broadcast, torch.full((length,), 7.0), 1)
                with mode():
                    first.sync.broadcast(got, 1)
                sending.result(SECONDS)
                assert torch.equal(got, torch.full((length,), 7.0))


@pytest.mark.parametrize("awaited", [True, False])
@pytest.mark.parametrize("late", [True, False])
def test_a_broadcast_that_is_late_or_differs_becomes_an_operation(store: str, late: bool, awaited: bool) -> None:
    def broadcast(world: World, tensor: torch.Tensor) -> Any:
        return asyncio.run(in_a_loop(world, tensor)) if awaited else world.sync.broadcast(tensor, 1)

    async def in_a_loop(world: World, tensor: torch.Tensor) -> None:
        world.member.enter_loop("the first operation in this loop")
        await world.broadcast(tensor, 1)

    with two(store) as (first, second, pool):
        operations = first.member.session.engine.operations
        for right in (True, False, True):
            got = torch.zeros(1)
            receiving = pool.submit(broadcast, first, got)
            if late:
                wait_until(lambda: bool(operations), SECONDS, "it does not become one")
            if right:
                second.sync.broadcast(torch.ones(1), 1)
                receiving.result(SECONDS)
                assert got.item() == 1.0
            else:
                for differs in (lambda: second.sync.broadcast(torch.ones(2), 1), lambda: receiving.result(SECONDS)):  # noqa: B023
                    with pytest.raises(TensorMismatch, match="broadcast of 4 bytes of float32"):
                        differs()
            assert not operations
        assert first.member.session.engine.counts["broadcast"] == 3
