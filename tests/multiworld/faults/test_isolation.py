"""Many worlds in one process, one of them hit: no error and no delay in the others."""

from __future__ import annotations

import asyncio
import time

import pytest
import torch

from multiworld import PeerLost
from multiworld.lab.context import Context
from tests.multiworld.faults import acts
from tests.multiworld.faults.bounds import GONE_SECONDS, SILENT_SECONDS
from tests.multiworld.faults.operations import SMALL, Row
from tests.multiworld.faults.scene import DEATH, Scene, lost

WORLDS = 8


async def echo(context: Context, name: str) -> int:
    """Send back whatever rank 0 sends, until it sends zero; how many."""
    world, count = context.mw[name], 0
    tensor = acts.filled(world, 256, 1)
    while float(tensor.cpu()[0]):
        await world.recv(tensor, 0)
        await world.send(tensor, 0)
        count += 1
    return count


async def call_all(context: Context, names: list[str]) -> None:
    """Go back and forth in all worlds at once until ``stop_calling``; the times at which round trips ended are kept."""
    trips = context.kept["trips"] = {name: [] for name in names}
    context.kept["calling"] = True

    async def one(name: str) -> None:
        world, on = context.mw[name], True
        tensor = acts.filled(world, 256)
        while on:
            on = context.kept["calling"]
            tensor.copy_(torch.full((256,), 1.0 if on else 0.0))
            await world.send(tensor, 1)
            await world.recv(tensor, 1)
            trips[name].append(time.monotonic())

    await asyncio.gather(*(one(name) for name in names))


async def await_trips(context: Context, since: float) -> None:
    """Wait until every world has made ten round trips more."""
    while not all(sum(at > since for at in trips) >= 10 for trips in context.kept["trips"].values()):
        await asyncio.sleep(0.005)


def stop_calling(context: Context) -> None:
    context.kept["calling"] = False


def trips_of(context: Context) -> dict[str, list[float]]:
    trips: dict[str, list[float]] = context.kept["trips"]
    return trips


@pytest.mark.parametrize("fault", ["kill", "freeze"])
def test_one_of_many_worlds_is_hit(scene: Scene, fault: str) -> None:
    """A leader in eight worlds with a worker each loses one: the other seven go on all the while.

    How fast they go on is measured by ``multiworld bench``.
    """
    leader, *workers = scene.workers(WORLDS + 1)
    names = [f"world-{number}" for number in range(WORLDS)]
    for name, worker in zip(names, workers, strict=True):
        scene.join(name, [leader, worker])
    others, victim = names[1:], workers[0]
    echoing = [worker.start(echo, name) for worker, name in zip(workers[1:], others, strict=True)]
    calling = leader.start(call_all, others)
    leader.run(await_trips, 0.0)
    waiting = leader.start(acts.operate, names[0], Row("recv", SMALL), 1)
    leader.wait_for("operating")
    fired = getattr(scene.injector, fault)(victim)
    outcome = waiting.outcome()
    lost(outcome, names[0], 1, GONE_SECONDS if fault == "kill" else SILENT_SECONDS, fired, {"eof", "silence"})
    leader.run(await_trips, outcome.ended)
    leader.run(stop_calling)
    calling.result()
    trips = leader.run(trips_of)
    assert [call.result() for call in echoing] == [len(trips[name]) for name in others]
    if fault == "freeze":  # the peer is silent for long before it is lost
        waited = [name for name in others if not any(fired.at < at < outcome.ended for at in trips[name])]
        assert waited == [], "these worlds waited until the peer of another one was lost"


def test_every_world_of_a_dead_peer_breaks_and_no_other(scene: Scene) -> None:
    """Two processes that share many worlds: its death breaks all of them, each once, each for its own waiter."""
    leader, victim, other = scene.workers(3)
    shared = [f"shared-{number}" for number in range(WORLDS)]
    for name in shared:
        scene.join(name, [leader, victim])
    scene.join("other", [leader, other])
    waiting = {name: leader.start(acts.operate, name, Row("recv", SMALL), 1) for name in shared}
    for _ in shared:
        leader.wait_for("operating")
    fired = scene.injector.kill(victim)
    for name, call in waiting.items():
        lost(call.outcome(), name, 1, GONE_SECONDS, fired, DEATH - {"reported"})
    scene.works("other", [leader, other])


def test_abort_of_one_world_leaves_others_of_the_same_peers(scene: Scene) -> None:
    """The same two processes in two worlds: what breaks one on purpose does not touch the other."""
    a, b = members = scene.workers(2)
    scene.join("one", members)
    scene.join("two", members)
    waiting = a.start(acts.operate, "one", Row("recv", SMALL), 1)
    a.wait_for("operating")
    at = time.monotonic()
    b.run(acts.abort, "one")
    scene.injector.record("abort", b.name, at, "abort() returned")
    assert isinstance(waiting.outcome().error, PeerLost)
    scene.works("two", members, 5)
    assert scene.everywhere(members, acts.rejoin, "one") == [2, 2]
    scene.works("one", members)
    scene.works("two", members)
