"""Worlds that go on with fewer members, and with more: whoever dies or sleeps meanwhile, no two halves go on."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

import pytest

from multiworld import Heartbeat, RendezvousError, StaleGeneration, TooFewMembers, WorldState
from multiworld.lab.context import Context
from multiworld.lab.workers import VanishedError, Worker
from multiworld.rendezvous.agreement import Agreement
from multiworld.rendezvous.ledger import Claim
from multiworld.rendezvous.reassembly import Reassembly
from tests.multiworld.faults import acts
from tests.multiworld.faults.bounds import ANSWER_SECONDS, JOIN_SECONDS
from tests.multiworld.faults.scene import CALM, Scene
from tests.multiworld.faults.test_recovery import store_keys

WORLD = "struck"
ONE_ROW = pytest.mark.only_rows("gloo", "the store decides; no backend is set up yet")


async def shrink(context: Context, name: str, options: dict[str, Any] | None = None) -> tuple[int, int, int]:
    """Go on with those that are left; rank, size, generation."""
    world = await context.mw[name].shrink(**{"timeout": JOIN_SECONDS, **(options or {})})
    return world.rank, world.size, world.generation


async def grow(context: Context, name: str) -> tuple[int, int, int]:
    """Take newcomers in; rank, size, generation."""
    world = await context.mw[name].grow()
    return world.rank, world.size, world.generation


async def enter(context: Context, name: str, options: dict[str, Any]) -> tuple[int, int, int]:
    """Come in as a newcomer; rank, size, generation."""
    world = await context.mw.join(name, grow=True, **options)
    return world.rank, world.size, world.generation


def identities(context: Context, name: str) -> list[tuple[str, int, int | None]]:
    """Identity, rank and old rank of all members."""
    return [(member.id, member.rank, member.old_rank) for member in context.mw[name].members]


async def await_pending(context: Context, name: str, count: int) -> None:
    """Wait until so many newcomers are seen."""
    until = time.monotonic() + ANSWER_SECONDS
    while len(context.mw[name].pending) != count:
        assert time.monotonic() < until, context.mw[name].pending
        await asyncio.sleep(0.005)


def die_at(context: Context, step: str) -> None:
    """Let this process be killed when its agreement comes to ``step``, a method of ``Reassembly``."""

    def killed(*_: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(Reassembly, step, killed)


def stop_at(context: Context, step: str) -> None:
    """Let this process be stopped when its agreement comes to ``step``, and go on with it when it is woken up."""
    method = getattr(Reassembly, step)

    def stopped(*args: Any) -> Any:
        setattr(Reassembly, step, method)
        signal.raise_signal(signal.SIGSTOP)  # to this thread, which would go on until another one took the signal
        return method(*args)

    setattr(Reassembly, step, stopped)


def tell_of_stillness(context: Context) -> None:
    """Mark "still" when the agreement has seen a member that stands still, and waits for it."""
    lost = Agreement.lost

    def told(self: Agreement, claim: Claim, **options: Any) -> bool:
        found = lost(self, claim, **options)
        if claim.identity in self._still and not found:
            context.mark("still")
        return found

    setattr(Agreement, "lost", told)  # noqa: B010


def _shrunk(scene: Scene, workers: list[Worker], **options: Any) -> int:
    """All ``workers`` shrink and work, in this order of ranks; the generation."""
    results = scene.everywhere(workers, shrink, WORLD, options)
    assert [(rank, size) for rank, size, _ in results] == [(rank, len(workers)) for rank in range(len(workers))]
    assert len({generation for *_, generation in results}) == 1
    scene.works(WORLD, workers)
    return int(results[0][2])


def _enter(scene: Scene, worker: Worker) -> Any:
    return worker.start(enter, WORLD, scene.options(worker))


def test_the_survivors_go_on_and_grow_again(scene: Scene) -> None:
    """From 4 to 3 to 5: identities stay, the members serve while newcomers wait, and no key is left in the store."""
    workers = scene.workers(4)
    scene.join(WORLD, workers)
    before = workers[0].run(identities, WORLD)
    scene.injector.kill(workers.pop(1))
    scene.broken(WORLD, workers)
    _shrunk(scene, workers)
    expected = [(before[old][0], new, old) for new, old in enumerate((0, 2, 3))]
    assert scene.everywhere(workers, identities, WORLD) == [expected] * 3

    newcomers = [scene.worker()]
    entering = [_enter(scene, newcomers[0])]
    scene.everywhere(workers, await_pending, WORLD, 1)
    scene.works(WORLD, workers)
    newcomers.append(scene.worker())
    entering.append(_enter(scene, newcomers[1]))
    scene.everywhere(workers, await_pending, WORLD, 2)
    results = scene.everywhere(workers, grow, WORLD) + [call.result(JOIN_SECONDS) for call in entering]
    assert results == [(rank, 5, 3) for rank in range(5)]
    scene.works(WORLD, workers + newcomers)
    after = scene.everywhere(workers, identities, WORLD)
    assert [one[0] for one in after[0][:3]] == [one[0] for one in expected]
    assert {tuple(one[0] for one in seen) for seen in after} == {
        tuple(one[0] for one in seen) for seen in scene.everywhere(newcomers, identities, WORLD)
    }

    keys = scene.host.run(store_keys, scene.store)
    scene.injector.kill(newcomers[1])
    scene.broken(WORLD, [*workers, newcomers[0]])
    _shrunk(scene, [*workers, newcomers[0]])
    assert scene.host.run(store_keys, scene.store) <= keys


@ONE_ROW
@pytest.mark.parametrize("victim", [0, 3])
@pytest.mark.parametrize("step", ["_place", "_claim", "_gather", "_wire", "_forget"])
def test_a_second_death_while_agreeing(scene: Scene, step: str, victim: int) -> None:
    """Of the one that closes the roster, or of another: before its claim, after it, while all connect, at the end."""
    workers = scene.workers(5)
    scene.join(WORLD, workers)
    second, first = workers[victim], workers[4]
    scene.injector.kill(first)
    survivors = [worker for worker in workers if worker not in (first, second)]
    scene.broken(WORLD, [*survivors, second])
    second.run(die_at, step)
    running = [worker.start(shrink, WORLD) for worker in survivors]
    with pytest.raises(VanishedError):
        second.start(shrink, WORLD).result()
    scene.injector.died(second, "kill", time.monotonic(), -signal.SIGKILL)
    if step == "_forget":  # all were in by then
        assert [call.result()[1] for call in running] == [4] * 3
        scene.broken(WORLD, survivors)
        _shrunk(scene, survivors)
    else:
        assert [call.result()[:2] for call in running] == [(rank, 3) for rank in range(3)]
        scene.works(WORLD, survivors)


@pytest.mark.parametrize("when", ["before", "_claim", "_wire"])
@ONE_ROW
def test_a_member_that_sleeps_while_the_others_go_on_is_refused(scene: Scene, when: str) -> None:
    """It wakes up with its part of the world: in the middle of the agreement, or before it; its other worlds live."""
    workers = scene.workers(4)
    sleeper, others = workers[0], workers[1:]  # the one that would close the roster
    scene.join(WORLD, workers)
    scene.join(CALM, others[:2])
    scene.join("own", [sleeper])
    if when == "before":
        scene.injector.freeze(sleeper)
        scene.broken(WORLD, others)
        _shrunk(scene, others)
        scene.injector.thaw(sleeper)
        scene.broken(WORLD, [sleeper])
        asked = sleeper.start(shrink, WORLD)
    else:
        scene.injector.kill(others.pop())
        scene.broken(WORLD, [sleeper, *others])
        sleeper.run(stop_at, when)
        asked = sleeper.start(shrink, WORLD)
        _shrunk(scene, others)
        scene.injector.thaw(sleeper)
    error = asked.outcome(ANSWER_SECONDS).error
    assert isinstance(error, StaleGeneration), error
    assert (error.world, error.operation) == (WORLD, "shrink")
    scene.works(WORLD, others)
    scene.works(CALM, workers[1:3])
    assert sleeper.run(acts.standing, "own").state is WorldState.ACTIVE


@ONE_ROW
@pytest.mark.parametrize("step", ["_claim", "_wire"])
def test_a_member_that_stands_still_for_a_moment_is_waited_for(scene: Scene, step: str) -> None:
    """It has the time that the heartbeat gives it, before its claim and while all connect."""
    workers = scene.workers(4)
    scene.join(WORLD, workers, heartbeat=Heartbeat(lost_after=JOIN_SECONDS))
    scene.injector.kill(workers.pop())
    scene.broken(WORLD, workers)
    sleeper, others = workers[0], workers[1:]
    scene.everywhere(others, tell_of_stillness)
    sleeper.run(stop_at, step)
    running = [worker.start(shrink, WORLD) for worker in workers]
    for worker in others:
        worker.wait_for("still")
    scene.injector.thaw(sleeper)
    assert [call.result(JOIN_SECONDS)[:2] for call in running] == [(rank, 3) for rank in range(3)]
    scene.works(WORLD, workers)


@ONE_ROW
def test_too_few_are_left(scene: Scene) -> None:
    """The world stays broken, and comes back with a replacement."""
    workers = scene.workers(3)
    scene.join(WORLD, workers)
    scene.injector.kill(workers.pop(1))
    scene.broken(WORLD, workers)
    running = [worker.start(shrink, WORLD, {"min_size": 3}) for worker in workers]
    for call in running:
        error = call.outcome(ANSWER_SECONDS).error
        assert isinstance(error, TooFewMembers), error
        assert error.left == 2
    replacement = scene.worker()
    running = [worker.start(acts.rejoin, WORLD) for worker in workers]
    running.append(scene.start_join(WORLD, replacement, 1, 3))
    for call in running:
        call.result(JOIN_SECONDS)
    scene.works(WORLD, [workers[0], replacement, workers[1]])


@ONE_ROW
def test_a_member_that_does_not_call_it_is_named(scene: Scene) -> None:
    workers = scene.workers(4)
    scene.join(WORLD, workers)
    scene.injector.kill(workers[3])
    scene.broken(WORLD, workers[:3])
    running = [worker.start(shrink, WORLD, {"timeout": 2.0}) for worker in workers[:2]]
    for call in running:
        error = call.outcome(ANSWER_SECONDS).error
        assert isinstance(error, RendezvousError), error
        assert "rank 2 of generation 1 runs, and did not call it" in error.what
    assert _shrunk(scene, workers[:3]) > 1


@ONE_ROW
@pytest.mark.parametrize("step", ["at the door", "_place", "_wire"])
def test_a_newcomer_dies(scene: Scene, step: str) -> None:
    """At the door the members forget it; later they go on without it."""
    workers, newcomer = scene.workers(3), scene.worker()
    scene.join(WORLD, workers)
    if step != "at the door":
        newcomer.run(die_at, step)
    entering = _enter(scene, newcomer)
    scene.everywhere(workers, await_pending, WORLD, 1)
    if step == "at the door":
        scene.injector.kill(newcomer)
        scene.everywhere(workers, await_pending, WORLD, 0)
        assert scene.everywhere(workers, grow, WORLD) == [(rank, 3, 1) for rank in range(3)]
    else:
        results = scene.everywhere(workers, grow, WORLD)
        assert [(rank, size) for rank, size, _ in results] == [(rank, 3) for rank in range(3)]
        with pytest.raises(VanishedError):
            entering.result()
        scene.injector.died(newcomer, "kill", time.monotonic(), -signal.SIGKILL)
    scene.works(WORLD, workers)


@ONE_ROW
def test_rank_0_dies_while_a_newcomer_waits(scene: Scene) -> None:
    """The newcomer knocks again, at the world that is left."""
    workers, newcomer = scene.workers(3), scene.worker()
    scene.join(WORLD, workers)
    entering = _enter(scene, newcomer)
    scene.everywhere(workers, await_pending, WORLD, 1)
    scene.injector.kill(workers.pop(0))
    scene.broken(WORLD, workers)
    _shrunk(scene, workers)
    scene.everywhere(workers, await_pending, WORLD, 1)
    assert scene.everywhere(workers, grow, WORLD) == [(0, 3, 3), (1, 3, 3)]
    assert entering.result(JOIN_SECONDS) == (2, 3, 3)
    scene.works(WORLD, [*workers, newcomer])
