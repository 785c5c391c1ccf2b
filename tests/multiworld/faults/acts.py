"""Functions that workers run; ``context`` is theirs, the arguments come from the test."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from procs import open_links

from multiworld import (
    BrokenWorldException,
    OwnStall,
    PeerRecovered,
    PeerSuspected,
    TcpStoreAddress,
    WorldBroken,
    WorldJoined,
    WorldState,
)
from multiworld.backends import cuda
from multiworld.lab.context import Context
from multiworld.rendezvous.ledger import Ledger
from multiworld.store.client import Deadline, StoreClient
from tests.multiworld.faults.operations import OPERATIONS, Row


def set_variables(context: Context, variables: dict[str, str]) -> None:
    """Set environment variables."""
    os.environ.update(variables)


def watch_events(context: Context) -> None:
    """Keep all events from now on in ``context.kept``."""
    context.kept["events"] = []
    context.mw.subscribe(context.kept["events"].append)


def events(context: Context) -> list[Any]:
    """The events since ``watch_events``."""
    return list(context.kept["events"])


async def events_of(context: Context, kind: type) -> list[Any]:
    """The events of a kind since ``watch_events``, once there is one: a waiter may wake before its event."""
    until = time.monotonic() + 60.0
    while not (found := [event for event in context.kept["events"] if isinstance(event, kind)]):
        if time.monotonic() > until:
            break
        await asyncio.sleep(0.01)
    return found


async def await_peace(context: Context) -> None:
    """Wait until each suspicion since ``watch_events`` has proved wrong; fails at any other event of a peer's.

    A busy machine may let a peer be silent for a while, which breaks nothing.
    """
    until = time.monotonic() + 60.0
    while doubted := _doubted(context.kept["events"]):
        assert time.monotonic() < until, f"suspected, and not heard of since: {doubted}"
        await asyncio.sleep(0.01)


def _doubted(events: list[Any]) -> set[tuple[str, int]]:
    doubted: set[tuple[str, int]] = set()
    for event in events:
        assert isinstance(event, WorldJoined | OwnStall | PeerSuspected | PeerRecovered), event
        if isinstance(event, PeerSuspected):
            doubted.add((event.world, event.peer))
        elif isinstance(event, PeerRecovered):
            doubted.discard((event.world, event.peer))
    return doubted


async def join(context: Context, name: str, rank: int, size: int, options: dict[str, Any]) -> tuple[int, int]:
    """Join; our rank and the generation."""
    world = await context.mw.join(name, rank, size, **options)
    return world.rank, world.generation


async def rejoin(context: Context, name: str, options: dict[str, Any] | None = None) -> int:
    """Rejoin; the generation."""
    return (await context.mw[name].rejoin(**(options or {}))).generation


async def leave(context: Context, name: str) -> None:
    """Leave in good order."""
    await context.mw[name].leave()


def abort(context: Context, name: str) -> None:
    """Break the world on purpose."""
    context.mw[name].abort("the test says so")


async def close(context: Context) -> None:
    """Close the ``MultiWorld``."""
    await context.close()


def end(context: Context, code: int) -> None:
    """Exit without leaving anything in order."""
    raise SystemExit(code)


def vanish(context: Context, code: int) -> None:
    """Exit at once, without the interpreter's clean-up."""
    os._exit(code)


async def operate(context: Context, name: str, row: Row, peer: int) -> Any:
    """Call one operation that needs ``peer``; say so as soon as it is under way."""
    task = asyncio.ensure_future(OPERATIONS[row.operation].call(context.mw[name], peer, row.count))
    await asyncio.sleep(0)  # the task's first step has begun the operation, and waits now
    context.mark("operating")
    return _plain(await task)


class Twin:
    """The synchronous twin of a world under the names that the table of operations uses."""

    def __init__(self, world: Any) -> None:
        self.rank, self.size, self.device = world.rank, world.size, world.device
        self._sync = world.sync

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sync, name)


async def operate_in_thread(context: Context, name: str, row: Row, peer: int) -> Any:
    """``operate`` with the synchronous twin, in a thread."""
    twin, session = Twin(context.mw[name]), context.mw[name].member.enter("test")
    task = asyncio.ensure_future(asyncio.to_thread(OPERATIONS[row.operation].call, twin, peer, row.count))
    while not session.engine.operations and not task.done():
        await asyncio.sleep(0.001)
    context.mark("operating")
    return _plain(await task)


async def operate_for_ever(context: Context, name: str, row: Row, peer: int) -> None:
    """Call it again and again; say so after the third time."""
    for turn in range(1_000_000):
        await OPERATIONS[row.operation].call(context.mw[name], peer, row.count)
        if turn == 2:
            context.mark("going round")


def _plain(value: Any) -> Any:
    return None if isinstance(value, torch.Tensor | list) else value


def filled(world: Any, count: int, value: float = 0.0) -> torch.Tensor:
    """A tensor on the world's device, made on the CPU: kernels do not run on a simulated device."""
    return torch.full((count,), float(value)).to(world.device)


async def keep_memory(context: Context, name: str) -> None:
    """Carry tensors of ours by messages and collectives, and keep them in ``context.kept``."""
    world = context.mw[name]
    peer = 1 - world.rank
    mine, got, total, parts = kept = [filled(world, count, 1.0) for count in (64, 64, 64, 128)]
    context.kept["memory"] = kept
    await asyncio.gather(world.send(mine, peer), world.recv(got, peer))
    await world.all_reduce(total)
    await world.all_gather_into_tensor(parts, mine)
    await asyncio.gather(world.send_tensor(mine, peer), _keep_received(context, world, peer))


async def _keep_received(context: Context, world: Any, peer: int) -> None:
    context.kept["memory"].append(await world.recv_tensor(peer))


def free_memory(context: Context) -> None:
    """Free what ``keep_memory`` has kept."""
    context.kept.pop("memory").clear()
    gc.collect()


async def ring(context: Context, name: str, rounds: int = 1) -> float:
    """Exchange with the neighbours and reduce; the seconds per round. Raises if data is wrong."""
    world = context.mw[name]
    started = time.monotonic()
    for turn in range(rounds):
        right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
        mine, got, total = (filled(world, n, v) for n, v in ((64, world.rank + turn), (64, 0), (20_000, world.rank)))
        await asyncio.gather(world.send(mine, right), world.recv(got, left))
        await world.all_reduce(total)
        assert bool((got.cpu() == left + turn).all()), "wrong message"
        assert bool((total.cpu() == sum(range(world.size))).all()), "wrong sum"
    return (time.monotonic() - started) / rounds


@dataclass(frozen=True, slots=True)
class Standing:
    """State of a world in a worker."""

    state: WorldState
    generation: int
    failure: BrokenWorldException | None


def standing(context: Context, name: str) -> Standing:
    """The state of a world."""
    world = context.mw[name]
    return Standing(world.state, world.generation, world.failure)


async def await_break(context: Context, name: str) -> WorldBroken:
    """Wait until the world is broken; its event."""
    stream = context.mw.events()
    world = context.mw[name]
    if world.failure is not None:
        return WorldBroken(world=name, generation=world.generation, rank=world.world_rank, failure=world.failure)
    context.mark("watching")
    async for event in stream:
        if isinstance(event, WorldBroken) and event.world == name:
            return event
    raise AssertionError("the stream of events ended")


@dataclass(frozen=True, slots=True)
class Held:
    """Resources that a process holds."""

    threads: int
    descriptors: int
    sockets: int


def held(context: Context) -> Held:
    """Count threads and descriptors, as the kernel sees them."""
    links = open_links()
    sockets = sum(link.startswith("socket:") for link in links)
    return Held(len(list(Path("/proc/self/task").iterdir())), len(links), sockets)


def device_memory(context: Context) -> tuple[int, int]:
    """Bytes of tensors on all devices, and bytes that torch has taken from them."""
    gc.collect()
    devices = range(torch.cuda.device_count())
    return sum(map(torch.cuda.memory_allocated, devices)), sum(map(torch.cuda.memory_reserved, devices))


def spare_streams(context: Context) -> int:
    """Count the streams of drivers that wait to be used again."""
    return sum(map(len, cuda._free.values()))


def thread_id(context: Context, name: str) -> int:
    """Kernel id of the thread whose name begins so."""
    found = [t.native_id for t in threading.enumerate() if t.name.startswith(name)]
    assert found, f"no thread {name!r} among {[t.name for t in threading.enumerate()]}"
    assert found[0] is not None
    return found[0]


async def serve_all(context: Context, name: str, row: Row) -> None:
    """Be the other side of everybody's point-to-point operation, again and again."""
    world = context.mw[name]
    peers = [rank for rank in range(world.size) if rank != world.rank]
    for turn in range(1_000_000):
        await asyncio.gather(*(OPERATIONS[row.operation].call(world, peer, row.count) for peer in peers))
        if turn == 2:
            context.mark("going round")


async def await_claims(
    context: Context, store: TcpStoreAddress, world: str, ranks: tuple[int, ...], generation: int = 1
) -> None:
    """Wait until ``ranks`` of that generation are claimed in the store."""
    deadline = time.monotonic() + 60
    client = StoreClient.connect(store, Deadline(deadline))
    ledger = Ledger(client, world)
    while not all(ledger.claimed(generation, rank) for rank in ranks):
        assert time.monotonic() < deadline, f"not all of ranks {ranks} are claimed"
        await asyncio.sleep(0.005)
    client.close()


def drivers(context: Context, name: str) -> set[str]:
    """The names of the drivers that a world has used so far."""
    made = (slot._driver for slot in context.mw[name].member.session.slots.values())
    return {driver.name for driver in made if driver is not None}
