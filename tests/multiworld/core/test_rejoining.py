"""One failure, one new generation: however many tasks, threads and callbacks of a member call ``rejoin()``."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from procs import cluster, wait_until

from multiworld import (
    BrokenWorldException,
    InvalidArgument,
    MultiWorld,
    PeerLost,
    RendezvousError,
    World,
    WorldBroken,
    WorldClosed,
    WorldState,
    WrongContext,
)
from multiworld.events import Event
from multiworld.lab.context import Context
from multiworld.rendezvous.wiring import Wiring
from multiworld.worlds import rejoining

SECONDS = 30.0
FAULTS = 4
ROUNDS = 5


async def _exchange(world: World, step: Callable[[], Any], generations: list[int]) -> None:
    """Do ``step`` until ``ROUNDS`` were done in the generation after the last fault; rejoin when the world breaks."""
    done = 0
    while world.generation <= FAULTS or done < ROUNDS:
        generation = world.generation
        try:
            await step()
            done = done + 1 if world.generation == generation else 0
            if generation <= FAULTS and done == ROUNDS and world.rank == 0:
                world.abort("a fault")
        except BrokenWorldException:
            done = 0
            await world.rejoin()
            generations.append(world.generation)
            assert world.generation <= FAULTS + 1, "a rejoin left a healthy world"


def _sender_and_receiver(context: Context, store: str, rank: int) -> list[int]:
    """The quick start's way to recover, in two tasks of one world."""
    seen: list[int] = []

    async def main() -> None:
        async with MultiWorld(op_timeout=SECONDS) as mw:
            w = await mw.join("w", rank, 2, store=store)
            peer = 1 - rank
            sender = _exchange(w, lambda: w.send(torch.ones(1), peer), seen)
            receiver = _exchange(w, lambda: w.recv(torch.zeros(1), peer), seen)
            await asyncio.wait_for(asyncio.gather(sender, receiver), SECONDS)
            await asyncio.to_thread(context.send, "through")
            await asyncio.to_thread(context.recv)

    asyncio.run(main())
    return seen


def test_a_sender_and_a_receiver_that_both_rejoin_settle(store: str) -> None:
    with cluster() as c:
        members = [c.start(_sender_and_receiver, store, rank) for rank in (0, 1)]
        assert [member.recv() for member in members] == ["through"] * 2
        for member in members:
            member.send("end")
        for seen in c.results():
            assert set(seen) == set(range(2, FAULTS + 2))


class Both:
    """Members 0 and 1 of a world "w", each in a ``MultiWorld`` of its own."""

    def __init__(self, store: str) -> None:
        self.mws = MultiWorld(op_timeout=SECONDS), MultiWorld(op_timeout=SECONDS)
        at_once(*(lambda m=m, r=r: m.sync.join("w", r, 2, store=store) for r, m in enumerate(self.mws)))
        self.a, self.b = (m["w"] for m in self.mws)

    def close(self) -> None:
        for mw in self.mws:
            mw.sync.close()


@pytest.fixture
def both(store: str) -> Iterator[Both]:
    made = Both(store)
    yield made
    made.close()


def at_once(*functions: Callable[[], Any]) -> list[Any]:
    """Run each in a thread of its own; their results. The first error is raised."""
    with ThreadPoolExecutor(len(functions)) as pool:
        return [future.result(SECONDS) for future in [pool.submit(function) for function in functions]]


def test_a_healthy_world_is_not_left_by_a_rejoin(both: Both) -> None:
    assert both.a.sync.rejoin() is both.a
    assert asyncio.run(both.b.rejoin(rank=1, size=2, timeout=0.01)) is both.b
    assert both.a.generation == both.b.generation == 1
    at_once(both.a.sync.barrier, both.b.sync.barrier)


def test_threads_of_both_members_share_one_rejoin(both: Both) -> None:
    both.b.abort("on purpose")
    wait_until(lambda: both.a.failure is not None, SECONDS, "the break was not noticed")
    worlds = at_once(*([both.a.sync.rejoin, both.b.sync.rejoin] * 8))
    assert {w.generation for w in worlds} == {2}
    assert both.a.sync.rejoin().generation == 2, "a late one finds the world whole"


@pytest.mark.parametrize("way", ["abort", "leave"])
def test_a_healthy_world_is_assembled_anew_by_another_word(both: Both, way: str) -> None:
    both.a.abort("on purpose") if way == "abort" else both.a.sync.leave()
    wait_until(lambda: both.b.failure is not None or bool(both.b.departed), SECONDS, "it was not noticed")
    at_once(both.a.sync.rejoin, both.b.sync.rejoin)
    assert both.a.generation == both.b.generation == 2
    at_once(both.a.sync.barrier, both.b.sync.barrier)


def test_a_rejoin_with_another_size_leaves_a_healthy_world_once(both: Both, store: str) -> None:
    with MultiWorld() as third:
        join = lambda: third.sync.join("w", 2, 3, store=store, resize=True)  # noqa: E731
        grow = [lambda w=w: w.sync.rejoin(size=3) for w in (both.a, both.b, both.a, both.b)]
        at_once(join, *grow)
        assert both.a.generation == both.b.generation == third["w"].generation == 2
        assert both.a.sync.rejoin(size=3).generation == 2


def test_two_sizes_at_once_are_refused(both: Both) -> None:
    both.b.abort("on purpose")
    wait_until(lambda: both.a.failure is not None, SECONDS, "the break was not noticed")
    with ThreadPoolExecutor() as pool:
        first = pool.submit(both.a.sync.rejoin)
        wait_until(lambda: both.a._rejoins._attempt is not None, SECONDS, "the rejoin has not begun")
        with pytest.raises(InvalidArgument, match=r"rejoin is under way here with rank 0, size 2, not with .*size 3"):
            both.a.sync.rejoin(size=3)
        both.b.sync.rejoin(size=2)
        assert first.result(SECONDS).generation == 2


def test_a_callback_and_a_task_share_one_rejoin(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    """The task that rejoins does not wait for the callback, which waits for the same rejoin."""
    monkeypatch.setattr(rejoining, "TELLING_SECONDS", 5 * SECONDS)
    heard: list[int] = []
    gate, done = threading.Event(), threading.Event()

    def callback(event: Event) -> None:
        if isinstance(event, WorldBroken) and not heard:
            gate.set()
            heard.append(both.a.sync.rejoin().generation)
            done.set()

    both.mws[0].subscribe(callback)
    both.a.abort("on purpose")
    assert gate.wait(SECONDS)
    worlds = at_once(both.a.sync.rejoin, lambda: asyncio.run(both.a.rejoin()), both.b.sync.rejoin)
    assert done.wait(SECONDS)
    assert {w.generation for w in worlds} == {2} == set(heard)


def test_a_cancelled_rejoin_does_not_end_that_of_another_task(both: Both) -> None:
    both.a.abort("on purpose")

    async def main() -> int:
        first, second = (asyncio.ensure_future(both.a.rejoin()) for _ in range(2))
        while (attempt := both.a._rejoins._attempt) is None or attempt.waiting < 2:
            await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        assert not attempt.job.given_up.is_set()
        await asyncio.to_thread(both.b.sync.rejoin)
        return (await second).generation

    assert asyncio.run(main()) == 2


def test_the_last_cancelled_rejoin_gives_up_and_the_next_begins_anew(both: Both) -> None:
    both.a.abort("on purpose")

    async def main() -> int:
        tasks = [asyncio.ensure_future(both.a.rejoin()) for _ in range(2)]
        while (attempt := both.a._rejoins._attempt) is None or attempt.waiting < 2:
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert attempt.job.given_up.is_set()
        other = asyncio.ensure_future(asyncio.to_thread(both.b.sync.rejoin))
        generation = (await both.a.rejoin()).generation
        await other
        return generation

    assert asyncio.run(main()) == both.b.generation


def test_a_rejoin_that_was_given_up_does_not_take_the_others_along(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    """All have met, over connections that were kept, and there is nothing to wait for: it ends all the same."""
    reached, gate, connect = threading.Event(), threading.Event(), Wiring.connect

    def held(wiring: Wiring, *rest: Any) -> Any:
        if wiring.dialler.rank == 0 and not reached.is_set():
            reached.set()
            assert gate.wait(SECONDS)
        return connect(wiring, *rest)

    monkeypatch.setattr(Wiring, "connect", held)
    both.a.abort("on purpose")
    wait_until(lambda: both.b.failure is not None, SECONDS, "the break was not noticed")

    async def main() -> None:
        other = asyncio.ensure_future(asyncio.to_thread(both.b.sync.rejoin))
        first = asyncio.ensure_future(both.a.rejoin())
        assert await asyncio.to_thread(reached.wait, SECONDS)
        first.cancel()
        await asyncio.wait([first])
        gate.set()
        await asyncio.gather(both.a.rejoin(), other)

    asyncio.run(main())
    assert both.a.generation == both.b.generation == 3


def test_a_forked_child_does_not_wait_for_the_rejoin_of_its_parent(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    both.a.abort("on purpose")
    with ThreadPoolExecutor() as pool:
        parents = pool.submit(both.a.sync.rejoin)
        wait_until(lambda: both.a._rejoins._attempt is not None, SECONDS, "the parent does not rejoin")
        with monkeypatch.context() as child:
            child.setattr(both.a.member, "_pid", 0)
            with pytest.raises(WrongContext, match="forked child"):
                both.a.sync.rejoin(timeout=0.3)
        both.b.sync.rejoin()
        assert parents.result(SECONDS).generation == 2


def test_each_caller_waits_for_its_own_time(both: Both) -> None:
    """One that gives up soon does not end a patient one's rejoin, whoever was first."""
    both.a.abort("on purpose")

    def soon() -> type:
        with pytest.raises(RendezvousError, match=r"not assembled within 0\.3 s"):
            both.a.sync.rejoin(timeout=0.3)
        return RendezvousError

    with ThreadPoolExecutor() as pool:
        impatient = pool.submit(soon)
        wait_until(lambda: both.a._rejoins._attempt is not None, SECONDS, "the rejoin has not begun")
        patient = pool.submit(both.a.sync.rejoin, timeout=SECONDS)
        assert impatient.result(SECONDS) is RendezvousError
        wait_until(lambda: both.a._rejoins._attempt is not None, SECONDS, "the patient one has given up")
        assert pool.submit(soon).result(SECONDS) is RendezvousError
        both.b.sync.rejoin()
        assert patient.result(SECONDS).generation == both.b.generation


def test_a_world_that_a_member_left_is_not_whole(both: Both) -> None:
    both.b.sync.leave()
    with pytest.raises(PeerLost):
        both.a.sync.recv(torch.zeros(1), 1)
    at_once(both.a.sync.rejoin, both.a.sync.rejoin, both.b.sync.rejoin)
    assert both.a.generation == both.b.generation == 2


def test_a_failed_rejoin_is_raised_in_every_caller(both: Both) -> None:
    both.a.abort("on purpose")

    def alone() -> RendezvousError:
        with pytest.raises(RendezvousError, match="rank 1 has not joined") as caught:
            both.a.sync.rejoin(timeout=1.0)
        return caught.value

    first, second = at_once(alone, alone)
    assert first is not second, "each has a traceback of its own"
    assert both.a.state is WorldState.BROKEN


def test_a_world_closed_during_a_rejoin_ends_it_for_all(both: Both) -> None:
    both.a.abort("on purpose")
    with ThreadPoolExecutor() as pool:
        waiting = [pool.submit(both.a.sync.rejoin) for _ in range(3)]
        wait_until(lambda: getattr(both.a._rejoins._attempt, "waiting", 0) == 3, SECONDS, "not all wait")
        both.mws[0].sync.close()
        for each in waiting:
            with pytest.raises((RendezvousError, WrongContext, WorldClosed)):
                each.result(SECONDS)
