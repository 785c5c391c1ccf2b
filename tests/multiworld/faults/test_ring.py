"""Worlds of more members than each of them watches: whoever is hit is noticed by all, and nobody else is accused."""

from __future__ import annotations

import ctypes
import os
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from multiworld import PeerLost, WorldState
from multiworld.lab.context import Context
from multiworld.lab.injector import Fired, listening_ports
from multiworld.lab.workers import Worker
from multiworld.liveness.monitor import SUCCESSORS, watched_by
from tests.multiworld.faults import acts
from tests.multiworld.faults.bounds import JOIN_SECONDS, SILENT_SECONDS
from tests.multiworld.faults.groups import group_frozen, root_of
from tests.multiworld.faults.network import Namespaces, missing, namespaces
from tests.multiworld.faults.operations import SMALL, Row
from tests.multiworld.faults.scene import Scene, lost

WORLD = "struck"
SIZE = 8
RECV = Row("recv", SMALL)

pytestmark = pytest.mark.only_rows("gloo", "who watches whom is a matter of the control lanes, and no tensor travels")


def all_notice(members: list[Worker], victims: dict[int, Fired], hit_at: float) -> None:
    """Everybody's world breaks in time, for one of the victims."""
    for rank, worker in enumerate(members):
        if rank not in victims:
            event = worker.run(acts.await_break, WORLD)
            assert isinstance(event.failure, PeerLost)
            assert set(event.failure.ranks) <= set(victims), str(event.failure)
            assert event.monotonic - hit_at <= SILENT_SECONDS


@pytest.mark.parametrize("fault", ["killed", "stopped", "cgroup v1", "cgroup v2"])
def test_everybody_notices_though_few_watch(scene: Scene, fault: str) -> None:
    members = scene.workers(SIZE)
    scene.join(WORLD, members)
    assert sum(5 in watched_by(rank, SIZE, (), ()) for rank in range(SIZE)) == SUCCESSORS
    with ExitStack() as stack:
        if fault.startswith("cgroup"):
            root = root_of(int(fault[-1]))
            if isinstance(root, str):
                pytest.skip(root)
            group = root / f"mw-ring-{os.getpid()}"
            fired = stack.enter_context(group_frozen(scene.injector, members[5], group, int(fault[-1])))
        else:
            fired = (scene.injector.kill if fault == "killed" else scene.injector.freeze)(members[5])
        all_notice(members, {5: fired}, fired.at)


@pytest.mark.parametrize("ranks", [(4, 5), (2, 3, 4, 5), (6, 7, 0, 1)], ids=str)
def test_neighbours_in_the_ring_are_lost_at_once(scene: Scene, ranks: tuple[int, ...]) -> None:
    """Also more of them than anybody watches."""
    members = scene.workers(SIZE)
    scene.join(WORLD, members)
    fired = {rank: scene.injector.freeze(members[rank]) for rank in ranks}
    all_notice(members, fired, max(one.at for one in fired.values()))


def test_who_has_left_is_skipped(scene: Scene) -> None:
    """Three neighbours leave in good order; the member behind them is watched by those before them."""
    members = scene.workers(SIZE)
    scene.join(WORLD, members)
    for rank in (2, 3, 4):
        members[rank].run(acts.leave, WORLD)
    rest = {rank: members[rank] for rank in (0, 1, 5, 6, 7)}
    for worker in rest.values():
        worker.run(_await_departures, WORLD, {2, 3, 4})
    fired = {rank: scene.injector.freeze(members[rank]) for rank in (5, 6, 7, 0)}
    event = rest[1].run(acts.await_break, WORLD)
    assert set(event.failure.ranks) <= set(fired)
    assert event.monotonic - fired[0].at <= SILENT_SECONDS


def _await_departures(context: Context, name: str, ranks: set[int]) -> None:
    deadline = time.monotonic() + 60
    while context.mw[name].departed != ranks:
        assert time.monotonic() < deadline, f"left are {context.mw[name].departed}"
        time.sleep(0.01)


async def join_and_hold(
    context: Context, name: str, rank: int, size: int, options: dict[str, Any], seconds: int
) -> float:
    """Join, and in the same breath hold the GIL in native code."""
    await context.mw.join(name, rank, size, **options)
    started = time.monotonic()
    ctypes.PyDLL(None).sleep(seconds)
    return time.monotonic() - started


@pytest.mark.slow
def test_who_holds_the_gil_right_after_the_join_is_not_silent(scene: Scene) -> None:
    """Its heartbeat connections are made and answered before the world counts as joined."""
    members = scene.workers(SIZE)
    for worker in members:
        worker.run(acts.watch_events)
    held = {3, 4}
    running = [
        worker.start(join_and_hold, WORLD, rank, SIZE, scene.options(worker), 10)
        if rank in held
        else worker.start(acts.join, WORLD, rank, SIZE, scene.options(worker))
        for rank, worker in enumerate(members)
    ]
    for rank, call in enumerate(running):
        value = call.result(JOIN_SECONDS + 20)
        if rank in held:
            assert value > 9
            scene.injector.record("busy", members[rank].name, time.monotonic() - value, f"held for {value:.1f} s")
    for worker in members:
        worker.run(acts.await_peace)
    scene.works(WORLD, members)


@pytest.mark.parametrize("said", [b"x", b"p", b"\x00", b"\x07" * 100], ids=["x", "a ping", "zero", "sevens"])
def test_a_strangers_bytes_stop_no_heartbeat(scene: Scene, said: bytes) -> None:
    """On every port of the members, for as long as the stranger likes."""
    members = scene.workers(3)
    scene.join(WORLD, members)
    for worker in members:
        worker.run(acts.watch_events)
    ports = [(host, port) for worker in members for port, host in listening_ports(worker.pid).items()]
    assert len(ports) >= len(members)
    with ExitStack() as stack:
        at = time.monotonic()
        for place in ports:
            sock = stack.enter_context(socket.create_connection(place, timeout=5))
            sock.sendall(said)
        scene.injector.record("strangers", WORLD, at, f"{len(ports)} connections said {said!r}")
        time.sleep(2.0)  # longer than anybody may be silent
        for worker in members:
            assert worker.run(acts.standing, WORLD).state is WorldState.ACTIVE
            worker.run(acts.await_peace)
        scene.works(WORLD, members)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_many_members_lose_nobody(scene: Scene) -> None:
    """Sixty-four processes compete for the processor: each may be suspected, and proves the suspicion wrong."""
    size = 64
    members = scene.workers(size)
    running = [scene.start_join(WORLD, a, rank, size, join_timeout=600.0) for rank, a in enumerate(members)]
    for call in running:
        call.result(660)
    for worker in members:
        worker.run(acts.watch_events)
    time.sleep(5.0)  # the time that is judged
    for worker in members:
        worker.run(acts.await_peace)
    fired = scene.injector.kill(members[40])
    event = members[0].run(acts.await_break, WORLD)
    assert event.failure.ranks == (40,)
    assert event.monotonic - fired.at <= 2 * SILENT_SECONDS


@pytest.fixture(scope="module")
def sides() -> Iterator[Namespaces]:
    if (reason := missing()) is not None:
        pytest.skip(reason)
    with namespaces() as made:
        yield made


@pytest.mark.ip
@pytest.mark.parametrize("row", [RECV, Row("all_reduce", SMALL)], ids=str)
def test_a_cut_between_two_that_are_no_neighbours(scene: Scene, sides: Namespaces, row: Row) -> None:
    """Nobody pings across it. It is noticed as soon as one waits for the other, and not before."""
    net = sides.populated(scene.pool, scene.injector)
    scene.host_at(sides.router, "10.213.1.1")
    far = {0: net.left.namespace, 4: net.right.namespace}  # of eight, only these two do not watch each other
    members = [scene.worker(network=far.get(rank, sides.router)) for rank in range(SIZE)]
    scene.join(WORLD, members)
    net.part()
    fired = scene.injector.fired[-1]
    time.sleep(2.0)  # longer than anybody may be silent
    assert {worker.run(acts.standing, WORLD).state for worker in members} == {WorldState.ACTIVE}
    if row is RECV:
        waits = {0: members[0].start(acts.operate, WORLD, row, 4)}
    else:
        waits = {rank: worker.start(acts.operate, WORLD, row, 4) for rank, worker in enumerate(members)}
    for rank in waits.keys() & far.keys():  # to the others all have come
        call = waits[rank]
        error = lost(call.outcome(), WORLD, None, SILENT_SECONDS + 2.0, fired, {"silence", "reported"})
        assert set(error.ranks) <= {0, 4}, f"rank {rank}: {error}"
