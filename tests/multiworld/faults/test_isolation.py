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
from tests.multiworld.faults.scene import Scene, lost

WORLDS = 8


async def echo(context: Context, name: str) -> int:
    """Send back whatever rank 0 sends, until it sends zero; how many."""
    world, tensor, count = context.mw[name], torch.ones(256), 0
    while float(tensor[0]):
        await world.recv(tensor, 0)
        await world.send(tensor, 0)
        count += 1
    return count


async def call_all(context: Context, names: list[str], seconds: float) -> dict[str, list[float]]:
    """Go back and forth in all worlds at once; the round trips of each."""
    end = time.monotonic() + seconds
    trips: dict[str, list[float]] = {name: [] for name in names}

    async def one(name: str) -> None:
        world, tensor, on = context.mw[name], torch.ones(256), True
        while on:
            started = time.monotonic()
            on = started < end
            tensor.fill_(1.0 if on else 0.0)
            await world.send(tensor, 1)
            await world.recv(tensor, 1)
            trips[name].append(time.monotonic() - started)

    context.mark("calling")
    await asyncio.gather(*(one(name) for name in names))
    return trips


def _p99(trips: dict[str, list[float]]) -> float:
    values = sorted(value for each in trips.values() for value in each)
    return values[int(len(values) * 0.99)]


@pytest.mark.parametrize("fault", ["kill", "freeze"])
def test_one_of_many_worlds_is_hit(scene: Scene, fault: str) -> None:
    """A leader in eight worlds with a worker each loses one: the other seven have no error and keep their latency."""
    leader, *workers = scene.workers(WORLDS + 1)
    names = [f"world-{number}" for number in range(WORLDS)]
    for name, worker in zip(names, workers, strict=True):
        scene.join(name, [leader, worker])
    others, victim = names[1:], workers[0]
    before = _measured(leader, workers[1:], others, lambda: None)
    waiting = leader.start(acts.operate, names[0], Row("recv", SMALL), 1)
    leader.wait_for("operating")
    during = _measured(leader, workers[1:], others, lambda: getattr(scene.injector, fault)(victim))
    within = GONE_SECONDS if fault == "kill" else SILENT_SECONDS
    lost(waiting.outcome(), names[0], 1, within, scene.injector.fired[-1], {"eof", "silence"})
    after = _measured(leader, workers[1:], others, lambda: None)
    # The bench has the figures; here: nobody waited for the broken world, on a machine that does other things too.
    assert during < max(5 * max(before, after), 0.25), f"p99 {before:.4f}, {during:.4f}, {after:.4f} s"


def _measured(leader, workers, names, strike) -> float:  # type: ignore[no-untyped-def]  # noqa: ANN001
    echoing = [worker.start(echo, name) for worker, name in zip(workers, names, strict=True)]
    calling = leader.start(call_all, names, 1.5)
    leader.wait_for("calling")
    time.sleep(0.3)  # under way
    strike()
    trips = calling.result()
    for call, name in zip(echoing, names, strict=True):
        assert call.result() == len(trips[name]) > 1
    return _p99(trips)


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
        lost(call.outcome(), name, 1, GONE_SECONDS, fired, {"eof"})
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
