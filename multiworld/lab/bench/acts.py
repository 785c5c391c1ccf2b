"""Functions that workers run for the parts of the bench that are not about ratios."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import threading
import time
from datetime import timedelta
from pathlib import Path

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
