"""The work of two processes in one timed turn, with plain ``torch.distributed`` and with a world; run by workers."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import torch
import torch.distributed as dist

from multiworld.config import TcpStoreAddress
from multiworld.lab.context import Context

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
