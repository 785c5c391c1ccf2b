"""Coming back: a hundred times, with another process, with more or fewer members, with faults in the middle of it."""

from __future__ import annotations

import asyncio
import contextlib
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

from multiworld import PeerLost, TcpStoreAddress
from multiworld.lab.context import Context
from multiworld.lab.workers import Worker
from tests.multiworld.faults import acts
from tests.multiworld.faults.backends import Kind
from tests.multiworld.faults.bounds import GONE_SECONDS, SILENT_SECONDS
from tests.multiworld.faults.operations import SMALL, Row
from tests.multiworld.faults.scene import CALM, DEATH, OnDevice, Scene, lost
from tests.multiworld.faults.test_crash_phases import crash_at

WORLD = "struck"
TURNS = 100
RECV = Row("recv", SMALL)
#: elements of more than a ring and the buffers of a socket take
LONG = 16_000_000


def store_keys(context: Context, store: TcpStoreAddress) -> int:
    """Count the keys that the store holds."""
    client = dist.TCPStore(store.host, store.port, None, False, timedelta(seconds=10))
    return int(client.num_keys())


async def break_and_rejoin(context: Context, name: str, turns: int) -> list[float]:
    """Use the world, break it, come back, again and again; the seconds that coming back took."""
    world = context.mw[name]
    seconds = []
    for _ in range(turns):
        await acts.ring(context, name)
        await world.all_reduce(acts.filled(world, 100_000))
        if world.rank == 0:
            await world.recv(acts.filled(world, 1), 1)  # the other one is through
            world.abort("on purpose")
        else:
            with contextlib.suppress(PeerLost):  # rank 0 has the message, and may be gone before we know
                await world.send(acts.filled(world, 1), 0)
                await world.recv(acts.filled(world, 1), 0)
        started = time.monotonic()
        await world.rejoin()
        seconds.append(time.monotonic() - started)
    return seconds


async def begin_guard(context: Context, name: str) -> None:
    """Send more than a lane takes at once: the guard of this process's engines, a thread with a descriptor, begins."""
    world, other = context.mw[name], 1 - context.mw[name].rank
    receiving = asyncio.ensure_future(world.recv(torch.empty(LONG), other))
    await world.send(torch.ones(LONG), other)
    await receiving
    assert "mw-guard" in {thread.read_text().strip() for thread in Path("/proc/self/task").glob("*/comm")}


def test_rejoin_a_hundred_times(scene: Scene) -> None:
    """No thread, descriptor or key of the store is left behind; nor a stream, communicator or memory of the device."""
    members = scene.workers(2)
    scene.join(WORLD, members)
    scene.everywhere(members, break_and_rejoin, WORLD, 3)
    scene.everywhere(members, begin_guard, WORLD)
    scene.works(WORLD, members)  # with its backend, as it will stand afterwards
    before, device = [worker.run(acts.held) for worker in members], [scene.on_device(worker) for worker in members]
    keys = scene.host.run(store_keys, scene.store)
    running = [worker.start(break_and_rejoin, WORLD, TURNS) for worker in members]
    seconds = [value for call in running for value in call.result(240)]
    assert len(seconds) == 2 * TURNS
    scene.injector.record("abort", "rank 0", time.monotonic(), "a hundred generations more")
    assert members[0].run(acts.standing, WORLD).generation == 4 + TURNS
    scene.works(WORLD, members)
    _settles(scene, members, before, device, keys)


def _settles(
    scene: Scene, members: list[Worker], before: list[acts.Held], device: list[OnDevice | None], keys: int
) -> None:
    """Wait until memory is freed, which happens in the background."""
    deadline = time.monotonic() + 5
    # A stream of the imitation starts its thread when it is first used; torch has 32 of them in its pool.
    lazy = 0 if scene.backend.kind is Kind.CPU else 32
    while True:
        now, there = [worker.run(acts.held) for worker in members], [scene.on_device(worker) for worker in members]
        left = scene.host.run(store_keys, scene.store)
        fewer = all(
            n.threads <= b.threads + lazy and n.descriptors <= b.descriptors for n, b in zip(now, before, strict=True)
        )
        if fewer and left <= keys and all(map(_as_before, device, there)):
            return
        told = f"before {before}, {device} and {keys} keys, a hundred times later {now}, {there} and {left}"
        assert time.monotonic() < deadline, told
        time.sleep(0.05)  # nothing tells when a thread of the backend has ended


def _as_before(before: OnDevice | None, now: OnDevice | None) -> bool:
    """Return whether nothing is held that was not, and streams were used again.

    A generation has three. It may begin before those of the two before it are freed.
    """
    if before is None or now is None:
        return before is now
    return now.adds_little_to(before) and now.streams <= before.streams + 9


def test_replacement_rank(scene: Scene) -> None:
    """Another process takes the dead one's rank."""
    a, b, victim = members = scene.workers(3)
    scene.join(CALM, [a, b])
    scene.join(WORLD, members)
    fired = scene.injector.kill(victim)
    for worker in (a, b):
        lost(worker.start(acts.operate, WORLD, RECV, 2).outcome(), WORLD, 2, GONE_SECONDS, fired, DEATH)
    spare = scene.worker()
    running = [a.start(acts.rejoin, WORLD), b.start(acts.rejoin, WORLD)]
    assert scene.start_join(WORLD, spare, 2, 3).result() == (2, 2)
    assert [call.result() for call in running] == [2, 2]
    scene.works(WORLD, [a, b, spare])
    scene.works(CALM, [a, b])


def test_scale_out_in_out(scene: Scene) -> None:
    """Two members, three, two, four; each size works."""
    a, b, c, d = scene.workers(4)
    assert scene.join(WORLD, [a, b]) == 1
    new = scene.start_join(WORLD, c, 2, 3, resize=True)
    assert scene.everywhere([a, b], acts.rejoin, WORLD, {"size": 3}) == [2, 2]
    assert new.result() == (2, 2)
    scene.works(WORLD, [a, b, c])
    at = time.monotonic()
    c.run(acts.leave, WORLD)
    scene.injector.record("leave", c.name, at, "leave() returned")
    assert scene.everywhere([a, b], acts.rejoin, WORLD, {"size": 2}) == [3, 3]
    scene.works(WORLD, [a, b])
    joining = [scene.start_join(WORLD, worker, rank, 4, resize=True) for rank, worker in ((2, c), (3, d))]
    assert scene.everywhere([a, b], acts.rejoin, WORLD, {"size": 4}) == [4, 4]
    assert [call.result() for call in joining] == [(2, 4), (3, 4)]
    scene.works(WORLD, [a, b, c, d])


def test_two_failures_at_once(scene: Scene) -> None:
    """One is killed and one is frozen; the survivors are told once, with the first cause, and replace both."""
    a, b, frozen, killed = members = scene.workers(4)
    scene.join(CALM, [a, b])
    scene.join(WORLD, members)
    waiting = [worker.start(acts.operate, WORLD, RECV, 2) for worker in (a, b)]
    for worker in (a, b):
        worker.wait_for("operating")
    scene.injector.freeze(frozen)
    fired = scene.injector.kill(killed)
    for call in waiting:
        error = call.outcome().error
        assert isinstance(error, PeerLost), repr(error)
        assert set(error.ranks) <= {2, 3}
    assert time.monotonic() - fired.at < SILENT_SECONDS
    spares = scene.workers(2)
    running = [worker.start(acts.rejoin, WORLD) for worker in (a, b)]
    running += [scene.start_join(WORLD, worker, rank, 4) for rank, worker in enumerate(spares, 2)]
    for call in running:
        call.result()
    scene.works(WORLD, [a, b, *spares])
    scene.works(CALM, [a, b])


def test_replacement_dies_during_recovery(scene: Scene) -> None:
    """The replacement crashes while it connects; the next one is taken in."""
    a, b, victim = members = scene.workers(3)
    scene.join(WORLD, members)
    scene.injector.kill(victim)
    first, second = scene.workers(2)
    first.run(crash_at, "socket.connect", 3)
    running = [worker.start(acts.rejoin, WORLD) for worker in (a, b)]
    scene.start_join(WORLD, first, 2, 3)
    mark = first.wait_for("crashing")
    scene.injector.died(first, "crash while recovering", mark.at, -9)
    running.append(scene.start_join(WORLD, second, 2, 3))
    for call in running:
        call.result()
    scene.works(WORLD, [a, b, second])


def test_survivor_dies_during_recovery(scene: Scene) -> None:
    """A second member dies while the first is replaced: both are replaced."""
    a, b, victim = members = scene.workers(3)
    scene.join(WORLD, members)
    scene.injector.kill(victim)
    b.run(crash_at, "socket.connect", 2)
    running = [a.start(acts.rejoin, WORLD)]
    b.start(acts.rejoin, WORLD)
    first, second = scene.workers(2)
    running.append(scene.start_join(WORLD, first, 2, 3))
    mark = b.wait_for("crashing")
    scene.injector.died(b, "crash while recovering", mark.at, -9)
    running.append(scene.start_join(WORLD, second, 1, 3))
    for call in running:
        call.result()
    scene.works(WORLD, [a, second, first])


def test_failure_while_another_world_initialises(scene: Scene) -> None:
    """The break of one world does not disturb another one on its way, at whose store and sockets it is."""
    a, b, victim, late = scene.workers(4)
    scene.join(WORLD, [a, b, victim])
    joining = [scene.start_join("new", worker, rank, 3) for rank, worker in enumerate((a, b))]
    scene.host.run(acts.await_claims, scene.store, "new", (0, 1))
    fired = scene.injector.kill(victim)
    for worker in (a, b):
        lost(worker.start(acts.operate, WORLD, RECV, 2).outcome(), WORLD, 2, GONE_SECONDS, fired, DEATH)
    joining.append(scene.start_join("new", late, 2, 3))
    assert [call.result() for call in joining] == [(0, 1), (1, 1), (2, 1)]
    scene.works("new", [a, b, late])
