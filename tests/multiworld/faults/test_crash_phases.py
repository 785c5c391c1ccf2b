"""A member crashes at each step of its life: before the store, in its wait, while connecting, idle, in teardown."""

from __future__ import annotations

import os
import pkgutil
import signal
import sys
import time
from typing import Any

import pytest

from multiworld import PeerLost, RendezvousError
from multiworld.lab.context import Context
from multiworld.lab.injector import Fired
from tests.multiworld.faults import acts
from tests.multiworld.faults.bounds import GONE_SECONDS, GRACE_SECONDS
from tests.multiworld.faults.operations import SMALL, Row
from tests.multiworld.faults.scene import CALM, Scene

WORLD = "struck"
SHORT = 2.0
BEFORE = "it is over before a backend is made"
#: a claim of a dead process is found out and replaced within this
REPLACED_SECONDS = 8.0


def crash_at(context: Context, event: str, turn: int) -> None:
    """Kill ourselves at the ``turn``-th audit event of that name, having said so."""
    seen = 0

    def hook(name: str, _: tuple[Any, ...]) -> None:
        nonlocal seen
        if name == event:
            seen += 1
            if seen == turn:
                context.mark("crashing", name)
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def _crashed(scene: Scene, victim: Any, event: str) -> Fired:
    mark = victim.wait_for("crashing")
    assert mark.value == event
    return scene.injector.died(victim, f"crash at {event}", mark.at, -signal.SIGKILL)


def _others_are_told(running: list[Any], budget: float) -> None:
    for call in running:
        outcome = call.outcome(budget + 5)
        assert isinstance(outcome.error, RendezvousError), repr(outcome.error)
        assert outcome.error.world == WORLD
        assert outcome.seconds <= budget


@pytest.mark.only_rows("gloo", BEFORE)
@pytest.mark.parametrize("rank", [0, 1])
def test_before_the_store(scene: Scene, rank: int) -> None:
    """A member that never comes: the others are told who is missing, at their deadline, and other worlds go on."""
    a, b, victim = scene.workers(3)
    scene.join(CALM, [a, b])
    scene.injector.kill(victim)
    ranks = [r for r in range(3) if r != rank]
    running = [scene.start_join(WORLD, x, r, 3, join_timeout=SHORT) for x, r in zip((a, b), ranks, strict=True)]
    _others_are_told(running, SHORT + GRACE_SECONDS)
    scene.works(CALM, [a, b])


@pytest.mark.only_rows("gloo", BEFORE)
@pytest.mark.parametrize("rank", [0, 1, 2])
def test_in_store_wait_then_replaced(scene: Scene, rank: int) -> None:
    """A member dies while it waits for the others: its rank is free for its replacement, and the world is assembled."""
    a, b, victim, spare = scene.workers(4)
    others = [r for r in range(3) if r != rank]
    scene.start_join(WORLD, victim, rank, 3)
    first = scene.start_join(WORLD, a, others[0], 3)
    scene.host.run(acts.await_claims, scene.store, WORLD, (rank, others[0]))
    scene.injector.kill(victim)
    started = time.monotonic()
    running = [first, scene.start_join(WORLD, b, others[1], 3), scene.start_join(WORLD, spare, rank, 3)]
    for call in running:
        call.result()
    assert time.monotonic() - started < REPLACED_SECONDS
    scene.works(WORLD, [a, b, spare])


# Every connection of a join is made by a connect; which is whose does not matter, each of them is struck once.
@pytest.mark.only_rows("gloo", BEFORE)
@pytest.mark.parametrize("turn", [1, 2, 3, 4])
@pytest.mark.parametrize("rank", [1, 2])
def test_in_connect(scene: Scene, rank: int, turn: int) -> None:
    a, b, victim, spare = scene.workers(4)
    others = [r for r in range(3) if r != rank]
    victim.run(crash_at, "socket.connect", turn)
    scene.start_join(WORLD, victim, rank, 3)
    running = [scene.start_join(WORLD, x, r, 3) for x, r in zip((a, b), others, strict=True)]
    _crashed(scene, victim, "socket.connect")
    running.append(scene.start_join(WORLD, spare, rank, 3))
    for call in running:
        call.result()
    scene.works(WORLD, [a, b, spare])


def test_before_the_first_operation(scene: Scene) -> None:
    """Nobody waits in anything: the break is noticed all the same, and the next operation raises it."""
    a, b, victim = members = scene.workers(3)
    scene.join(CALM, [a, b])
    scene.join(WORLD, members)
    watching = [worker.start(acts.await_break, WORLD) for worker in (a, b)]
    for worker in (a, b):
        worker.wait_for("watching")
    fired = scene.injector.kill(victim)
    for call in watching:
        event = call.result()
        assert isinstance(event.failure, PeerLost)
        assert event.failure.ranks == (2,)
        assert event.monotonic - fired.at <= GONE_SECONDS
    scene.works(CALM, [a, b])


TEARDOWN = {
    "before anything is said": "multiworld.session.session.Session.leave",
    "while what was sent is taken": "multiworld.session.session.Session._linger",
    "while it is freed": "multiworld.session.session.Session._free",
}


@pytest.mark.parametrize("where", TEARDOWN)
def test_in_teardown(scene: Scene, where: str) -> None:
    """A member dies while it leaves: the others see that it left or that it is gone, and nothing hangs."""
    a, b, victim = members = scene.workers(3)
    scene.join(CALM, [a, b])
    scene.join(WORLD, members)
    scene.works(WORLD, members)
    victim.run(crash_calling, TEARDOWN[where])
    victim.start(acts.leave, WORLD)
    _crashed(scene, victim, TEARDOWN[where])
    waiting = [worker.start(acts.operate, WORLD, Row("recv", SMALL), 2) for worker in (a, b)]
    for call in waiting:
        outcome = call.outcome()
        assert isinstance(outcome.error, PeerLost), repr(outcome.error)
        assert outcome.error.how in {"left", "eof", "reported"}
    scene.works(CALM, [a, b])
    for worker in (a, b):
        worker.run(acts.leave, WORLD)


def crash_calling(context: Context, path: str) -> None:
    """Kill ourselves instead of calling the function or method ``module.name`` the next time."""
    owner_path, _, name = path.rpartition(".")
    owner = pkgutil.resolve_name(owner_path)
    assert callable(getattr(owner, name)), f"there is no {path} any more"

    def instead(*_: Any, **__: Any) -> None:
        context.mark("crashing", path)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(owner, name, instead)
