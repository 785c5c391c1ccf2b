"""Peers that stop: frozen, thawed again, stalled themselves, or slow but alive."""

from __future__ import annotations

import asyncio
import ctypes
import io
import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from multiworld import Heartbeat, OwnStall, PeerLost, PeerRecovered, PeerSuspected, WorldState
from multiworld.lab.context import Context
from tests.multiworld.faults import acts
from tests.multiworld.faults.bounds import GRACE_SECONDS, SILENT_SECONDS
from tests.multiworld.faults.groups import group_frozen, root_of, thread_frozen, throttled
from tests.multiworld.faults.operations import SMALL, Row
from tests.multiworld.faults.scene import CALM, DEATH, Scene, lost

WORLD = "struck"
RECV = Row("recv", SMALL)
HOST_ONLY = "it is about threads and CPU time of the host, and no tensor travels"


async def wait_for_recv(context: Context, name: str, src: int, seconds: float) -> str:
    """A receive under ``asyncio.wait_for``; the name of what came of it."""
    context.mark("waiting")
    world = context.mw[name]
    try:
        await asyncio.wait_for(world.recv(acts.filled(world, 1), src), seconds)
    except asyncio.TimeoutError as error:
        return "PeerLost" if isinstance(error, PeerLost) else "TimeoutError"
    except PeerLost:
        return "PeerLost"
    return "value"


@pytest.mark.only_rows("gloo", HOST_ONLY)
def test_frozen_peer_does_not_hold_up_wait_for(scene: Scene) -> None:
    """The deadline of the caller comes before the peer is lost: it is kept to."""
    a, victim = members = scene.workers(2)
    scene.join(WORLD, members, heartbeat=Heartbeat(interval=0.2, suspect_after=5.0, lost_after=10.0))
    scene.injector.freeze(victim)
    outcome = a.start(wait_for_recv, WORLD, 1, 0.3).outcome()
    assert outcome.value == "TimeoutError"
    assert 0.3 <= outcome.seconds < 0.3 + GRACE_SECONDS


@pytest.fixture(params=[1, 2], ids=["cgroup v1", "cgroup v2"])
def groups(request: pytest.FixtureRequest) -> tuple[Path, int]:
    """A name for a control group, and its version."""
    root = root_of(request.param)
    if isinstance(root, str):
        pytest.skip(root)
    return root / f"mw-test-{os.getpid()}", request.param


@pytest.mark.only_rows("gloo", HOST_ONLY)
def test_a_peer_frozen_by_its_control_group_is_lost_as_soon_as_a_stopped_one(
    scene: Scene, groups: tuple[Path, int]
) -> None:
    """The kernel shows its threads as asleep. They were taken for starved, and given ten times as long."""
    a, b, victim = members = scene.workers(3)
    beat = Heartbeat(interval=0.2, suspect_after=2.0, lost_after=4.0)
    scene.join(WORLD, members, heartbeat=beat)
    waiting = [worker.start(acts.operate, WORLD, RECV, 2) for worker in (a, b)]
    for worker in (a, b):
        worker.wait_for("operating")
    with group_frozen(scene.injector, victim, *groups) as fired:
        for call in waiting:
            lost(call.outcome(), WORLD, 2, beat.lost_after + SILENT_SECONDS, fired, {"silence", "reported"})


@pytest.mark.only_rows("gloo", HOST_ONLY)
def test_a_starved_peer_on_this_machine_is_not_lost(scene: Scene) -> None:
    """It gets 2 % of a core and wants more: it is silent for longer than a stopped one may be, and nothing breaks."""
    a, slow = members = scene.workers(2)
    scene.join(WORLD, members)
    a.run(acts.watch_events)
    kinds: set[type] = set()
    for _ in range(3):  # which of its threads gets the little that it has is the kernel's choice: it may answer in time
        try:
            with throttled(slow.pid, 0.02) as group:
                at = time.monotonic()
                busy = slow.start(_burn, 3.0)
                time.sleep(4.0)  # the starvation is meant to last
                stat = (group / "cpu.stat").read_text().split()
                waited = int(stat[stat.index("throttled_time") + 1]) / 1e9
                assert waited > 1.5, f"throttled for {waited} s only"
                scene.injector.record("throttle", slow.name, at, f"waited for a CPU for {waited:.1f} s")
        except OSError as error:
            pytest.skip(f"no quota of CPU can be set here: {error}")
        busy.result()
        kinds |= {type(event) for event in a.run(acts.events)}
        if PeerSuspected in kinds:
            break
    assert PeerSuspected in kinds, "it was not silent: nothing was shown"
    assert a.run(acts.standing, WORLD).state is WorldState.ACTIVE
    scene.works(WORLD, members)


def _burn(context: Context, seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def test_frozen_peer_while_three_worlds_are_busy(scene: Scene) -> None:
    """It is lost to those who wait for it; the other worlds go on meanwhile, without an error."""
    a, b, victim = members = scene.workers(3)
    busy = ["one", "two", "three"]
    for name in busy:
        scene.join(name, [a, b])
    scene.join(WORLD, members)
    rings = [worker.start(_rings, busy) for worker in (a, b)]
    a.wait_for("round")
    waiting = [worker.start(acts.operate, WORLD, RECV, 2) for worker in (a, b)]
    for worker in (a, b):
        worker.wait_for("operating")
    fired = scene.injector.freeze(victim)
    outcomes = [call.outcome() for call in waiting]
    for outcome in outcomes:
        lost(outcome, WORLD, 2, SILENT_SECONDS, fired, {"silence", "reported"})
    rounds = [mark.at for mark in a.marks("round")]
    assert any(fired.at < at < outcomes[0].ended for at in rounds), "the others waited for the frozen one"
    a.run(_stop)
    for call in rings:
        call.result()


async def _rings(context: Context, names: list[str]) -> None:
    """Keep the worlds busy until rank 0 is told to stop."""
    context.kept["on"] = True
    world = context.mw[names[0]]
    on = acts.filled(world, 1, 1)
    while float(on.cpu()):
        await asyncio.gather(*(acts.ring(context, name) for name in names))
        context.mark("round")
        on.copy_(torch.full((1,), float(context.kept["on"])))
        await world.broadcast(on, 0)


def _stop(context: Context) -> None:
    context.kept["on"] = False


def test_short_freeze_is_forgiven(scene: Scene) -> None:
    """Suspected, then heard again: nothing breaks, and the pending receive gets its message."""
    a, victim = members = scene.workers(2)
    patient = Heartbeat(interval=0.1, suspect_after=0.3, lost_after=5.0)
    scene.join(WORLD, members, heartbeat=patient)
    a.run(acts.watch_events)
    pending = a.start(acts.operate, WORLD, RECV, 1)
    a.wait_for("operating")
    scene.injector.freeze(victim)
    time.sleep(1.0)  # the freeze is meant to last
    scene.injector.thaw(victim)
    victim.run(_send, WORLD, 0)
    pending.result()
    kinds = [type(event) for event in a.run(acts.events)]
    assert PeerSuspected in kinds
    assert a.run(acts.standing, WORLD).state is WorldState.ACTIVE
    deadline = time.monotonic() + 3
    while PeerRecovered not in [type(event) for event in a.run(acts.events)]:
        assert time.monotonic() < deadline, "the recovery was not told"
    scene.works(WORLD, members)


async def _send(context: Context, name: str, dst: int) -> None:
    world = context.mw[name]
    await world.send(acts.filled(world, SMALL), dst)


@pytest.mark.only_rows("gloo", HOST_ONLY)
@pytest.mark.parametrize("seconds", [2.0])
def test_our_own_stall_accuses_nobody(scene: Scene, seconds: float) -> None:
    """We are stopped ourselves, longer than peers may be silent; with patient peers the world goes on."""
    a, _ = members = scene.workers(2)
    impatient, patient = Heartbeat(), Heartbeat(interval=0.2, suspect_after=1.0, lost_after=20.0)
    running = [
        scene.start_join(WORLD, worker, rank, 2, heartbeat=heartbeat)
        for rank, (worker, heartbeat) in enumerate(zip(members, (impatient, patient), strict=True))
    ]
    for call in running:
        call.result()
    a.run(acts.watch_events)
    scene.injector.freeze(a)
    time.sleep(seconds)  # the freeze is meant to last
    scene.injector.thaw(a)
    scene.works(WORLD, members)
    stalls = a.run(acts.events_of, OwnStall)  # told by another thread than the one that works
    assert stalls[0].gap > seconds * 0.8


def test_thawed_member_finds_itself_replaced(scene: Scene) -> None:
    """The others have lost a frozen member; when it wakes up, its world is broken there too, and says why."""
    a, b, victim = members = scene.workers(3)
    scene.join(WORLD, members)
    fired = scene.injector.freeze(victim)
    waiting = [worker.start(acts.operate, WORLD, RECV, 2) for worker in (a, b)]
    for call in waiting:
        lost(call.outcome(), WORLD, 2, SILENT_SECONDS, fired, {"silence", "reported"})
    scene.injector.thaw(victim)
    outcome = victim.start(acts.operate, WORLD, RECV, 0).outcome()
    assert isinstance(outcome.error, PeerLost), repr(outcome.error)
    scene.works("again", [a, b], 1) if scene.join("again", [a, b]) else None


def hold_gil(context: Context, seconds: int) -> float:
    """Hold the GIL in native code, so that no Python thread of this process runs."""
    context.mark("holding")
    started = time.monotonic()
    ctypes.PyDLL(None).sleep(seconds)
    return time.monotonic() - started


def load_model(context: Context, seconds: float) -> int:
    """Load a model of some hundred MB again and again, with the event loop blocked all the while."""
    buffer = io.BytesIO()
    torch.save({f"layer-{i}": torch.zeros(1 << 20) for i in range(32)}, buffer)
    context.mark("loading")
    loads, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        buffer.seek(0)
        torch.load(buffer, weights_only=True)
        loads += 1
        ctypes.PyDLL(None).usleep(500_000)  # the disk is slow, and the loader holds the GIL meanwhile
    return loads


@pytest.mark.only_rows("gloo", HOST_ONLY)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "seconds", "mark"), [(hold_gil, 10, "holding"), (load_model, 30.0, "loading")], ids=["gil", "load"]
)
def test_slow_but_alive(scene: Scene, function: Any, seconds: float, mark: str) -> None:
    """Nobody is declared dead, and a receive that waited all the time gets its message."""
    a, b = members = scene.workers(2)
    scene.join(WORLD, members)
    a.run(acts.watch_events)
    pending = a.start(acts.operate, WORLD, RECV, 1)
    a.wait_for("operating")
    busy = b.start(function, seconds)
    at = b.wait_for(mark).at
    assert busy.result(seconds + 20)
    scene.injector.record("busy", b.name, at, f"blocked for {time.monotonic() - at:.1f} s")
    b.run(_send, WORLD, 0)
    pending.result()
    assert not [event for event in a.run(acts.events) if isinstance(event, PeerLost | PeerSuspected)]
    scene.works(WORLD, members)


def test_monitor_thread_stalls(scene: Scene) -> None:
    """The thread that watches the peers is stopped: operations go on, nobody is accused, and it catches up later."""
    a, b, victim = members = scene.workers(3)
    scene.join(CALM, [a, b])
    scene.join(WORLD, members)
    scene.works(WORLD, members)  # its communicators are made, which needs that thread
    a.run(acts.watch_events)
    with thread_frozen(scene.injector, a, a.run(acts.thread_id, "mw-hub")):
        started = time.monotonic()
        while time.monotonic() - started < 2.0:
            scene.works(WORLD, members, 1)
    scene.works(WORLD, members)
    assert not [event for event in a.run(acts.events) if not isinstance(event, OwnStall)]
    fired = scene.injector.kill(victim)
    lost(a.start(acts.operate, WORLD, RECV, 2).outcome(), WORLD, 2, SILENT_SECONDS, fired, DEATH)
    scene.works(CALM, [a, b])
