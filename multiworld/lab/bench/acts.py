"""Functions that workers run: timed turns with plain ``torch.distributed`` and with a world, and the other parts."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from multiworld.config import TcpStoreAddress
from multiworld.errors import BrokenWorldException, PeerLost
from multiworld.lab.context import Context

#: floats of a round trip while another world breaks
PAYLOAD = 1000


def held(context: Context) -> tuple[int, int]:  # noqa: ARG001
    """The numbers of threads and of descriptors that this process holds, as the kernel counts them."""
    threads, descriptors = (len(list(Path(f"/proc/self/{what}").iterdir())) for what in ("task", "fd"))
    return threads, descriptors


def store_keys(context: Context, store: TcpStoreAddress) -> int:  # noqa: ARG001
    return int(dist.TCPStore(store.host, store.port, None, False, timedelta(seconds=10)).num_keys())


async def receive(context: Context, name: str, src: int) -> float:
    """Wait for a message that never comes; the monotonic time at which the loss was raised."""
    task = asyncio.ensure_future(context.mw[name].recv(torch.zeros(1), src))
    await asyncio.sleep(0)
    context.mark("receiving")
    try:
        await task
    except PeerLost:
        return time.monotonic()
    raise AssertionError("a message came that was never sent")


async def cpu_of_receiving(context: Context, name: str, src: int, seconds: float) -> float:
    """Share of a core that this process takes while one receive is pending."""
    task = asyncio.ensure_future(context.mw[name].recv(torch.zeros(1), src))
    await asyncio.sleep(0.2)
    share = await cpu_of_idling(context, seconds)
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return share


async def cpu_of_idling(context: Context, seconds: float) -> float:  # noqa: ARG001
    """Share of a core that this process takes while it does nothing."""
    started, used = time.monotonic(), time.process_time()
    await asyncio.sleep(seconds)
    return (time.process_time() - used) / (time.monotonic() - started)


async def cpu_of_waiting(context: Context, name: str, src: int, seconds: float) -> float:
    """The same while a thread waits in a synchronous receive, until its deadline breaks the world."""
    started, used = time.monotonic(), time.process_time()
    with contextlib.suppress(BrokenWorldException):
        await asyncio.to_thread(context.mw[name].sync.recv, torch.zeros(1), src, timeout=seconds)
    return (time.process_time() - used) / (time.monotonic() - started)


async def join_many(context: Context, names: list[str], rank: int, size: int, store: TcpStoreAddress) -> float:
    """Join many worlds, one after the other; the seconds of each on average."""
    started = time.monotonic()
    for name in names:
        await context.mw.join(name, rank, size, store=store)
    return (time.monotonic() - started) / len(names)


async def join_at_once(
    context: Context, names: list[str], rank: int, size: int, store: TcpStoreAddress
) -> tuple[float, int]:
    """Join many worlds at once; the seconds until all are joined, and the most threads of the package meanwhile."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, allowed))  # each world has two descriptors here
    started, most = time.monotonic(), 0
    joins = asyncio.gather(*(context.mw.join(name, rank, size, store=store, join_timeout=120) for name in names))
    while not joins.done():
        most = max(most, sum(thread.name.startswith("mw-") for thread in threading.enumerate()))
        await asyncio.sleep(0.02)
    await joins
    return time.monotonic() - started, most


def burn(context: Context, seconds: float) -> int:  # noqa: ARG001
    end, turns = time.monotonic() + seconds, 0
    while time.monotonic() < end:
        turns += 1
    return turns


async def still_there(context: Context, names: list[str]) -> list[str]:
    return [name for name in names if context.mw[name].failure is not None]


async def call(context: Context, names: list[str], seconds: float, length: int) -> list[float]:
    """Round trips with rank 1 of all ``names`` at once, of ``length`` floats; their times."""
    end, trips = time.monotonic() + seconds, []

    async def one(name: str) -> None:
        world, tensor, on = context.mw[name], torch.ones(length), True
        while on:
            started = time.perf_counter()
            on = time.monotonic() < end
            tensor.fill_(1.0 if on else 0.0)
            await world.send(tensor, 1)
            await world.recv(tensor, 1)
            trips.append(time.perf_counter() - started)

    context.mark("calling")
    await asyncio.gather(*(one(name) for name in names))
    return trips


async def echo(context: Context, names: list[str], length: int) -> None:
    """Send back what rank 0 sends in each world until it sends zero."""

    async def one(name: str) -> None:
        world, tensor = context.mw[name], torch.ones(length)
        while float(tensor[0]):
            await world.recv(tensor, 0)
            await world.send(tensor, 0)

    await asyncio.gather(*(one(name) for name in names))


async def break_and_rejoin(context: Context, name: str, turns: int) -> list[float]:
    """Use a world of two with its backend, break it and rejoin; the seconds of each rejoin."""
    world, seconds = context.mw[name], []
    for _ in range(turns):
        await world.all_reduce(torch.ones(100_000))
        if world.rank == 0:
            await world.recv(torch.zeros(1), 1)  # the other one is through
            world.abort("the bench breaks it on purpose")
        else:
            await world.send(torch.zeros(1), 0)
            with contextlib.suppress(PeerLost):
                await world.recv(torch.zeros(1), 0)
        started = time.monotonic()
        await world.rejoin()
        seconds.append(time.monotonic() - started)
    await world.all_reduce(torch.ones(100_000))
    return seconds


WORLD = "bench"
#: messages of one throughput measurement that are under way before the sender waits for a sign
BURST = 8


# A turn yields the result of each of its calls: a coroutine is then awaited, and anything else is done already.
Turn = Callable[[Any, list[torch.Tensor]], Iterable[Any]]


def _round_trip(group: Any, tensors: list[torch.Tensor]) -> Iterator[Any]:
    if group.rank == 0:
        yield group.send(tensors[0], 1)
        yield group.recv(tensors[1], 1)
    else:
        yield group.recv(tensors[1], 0)
        yield group.send(tensors[0], 0)


def _one_way(group: Any, tensors: list[torch.Tensor]) -> Iterator[Any]:
    if group.rank == 0:
        for _ in range(BURST):
            yield group.send(tensors[0], 1)
        yield group.recv(tensors[2], 1)
    else:
        for _ in range(BURST):
            yield group.recv(tensors[1], 0)
        yield group.send(tensors[2], 0)


@dataclass(frozen=True, slots=True)
class Workload:
    """One row; ``nbytes`` move ``payloads`` times in a turn."""

    turn: Turn
    payloads: int = 1
    sized: bool = True


WORKLOADS = {
    "round trip": Workload(_round_trip, payloads=2),
    "one way": Workload(_one_way, payloads=BURST),
    "all_reduce": Workload(lambda group, tensors: (group.all_reduce(tensors[0]),)),
    "broadcast": Workload(lambda group, tensors: (group.broadcast(tensors[0], 0),)),
    "all_gather": Workload(lambda group, tensors: (group.all_gather(tensors[:2], tensors[3]),)),
    "barrier": Workload(lambda group, _: (group.barrier(),), sized=False),
}


def _tensors(nbytes: int) -> list[torch.Tensor]:
    payload = [torch.zeros(nbytes, dtype=torch.uint8) for _ in range(2)]
    return [*payload, torch.zeros(4, dtype=torch.uint8), torch.zeros(nbytes, dtype=torch.uint8)]


def set_up(context: Context, rank: int, store: TcpStoreAddress) -> None:
    """Make the plain group of the two processes; the loopback is what worlds use as well."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    client = dist.TCPStore(store.host, store.port, None, False, timedelta(seconds=30))
    plain = dist.PrefixStore("plain", client)
    dist.init_process_group("gloo", store=plain, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    context.kept["plain"] = SimpleNamespace(**vars(dist), rank=rank)


def turns_plain(context: Context, name: str, nbytes: int, count: int) -> list[float]:
    """Seconds of each of ``count`` turns with the plain group."""
    return _timed(WORKLOADS[name], context.kept["plain"], nbytes, count)


async def turns_waiting(context: Context, name: str, nbytes: int, count: int) -> list[float]:
    """The same with the synchronous twin of a world, in a thread: it refuses to block a running event loop."""
    return await asyncio.to_thread(_timed, WORKLOADS[name], context.mw[WORLD].sync, nbytes, count)


async def turns_awaited(context: Context, name: str, nbytes: int, count: int) -> list[float]:
    """The same with a world, awaited."""
    turn, group, tensors = WORKLOADS[name].turn, context.mw[WORLD], _tensors(nbytes)
    seconds = []
    for _ in range(1 + count):
        started = time.perf_counter()
        for call in turn(group, tensors):
            await call
        seconds.append(time.perf_counter() - started)
    return seconds[1:]


def _timed(workload: Workload, group: Any, nbytes: int, count: int) -> list[float]:
    tensors, seconds = _tensors(nbytes), []
    for _ in range(1 + count):
        started = time.perf_counter()
        for _done in workload.turn(group, tensors):
            pass
        seconds.append(time.perf_counter() - started)
    return seconds[1:]
