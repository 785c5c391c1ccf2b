"""The cost of a world on NCCL over its bare communicator, in interleaved rounds; run by two members on a device
each."""

from __future__ import annotations

import asyncio
import ctypes
import queue
import statistics
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import torch

from multiworld.backends import cuda, nccl
from multiworld.lab.context import Context
from multiworld.operations.p2p import P2P
from multiworld.worlds.multi_world import MultiWorld
from multiworld.worlds.world import World

#: round trips of 4 bytes, and transfers of 4 MB, in one round; enough of these to see how they flow, not how they begin
TURNS, TRANSFERS = 100, 100
#: transfers in a call of ``batch_p2p``
BATCH = 20
_FLOAT = 7  # ncclFloat32
_ELEMENTS = 1 << 20


@dataclass(frozen=True, slots=True)
class Round:
    """One round.

    Attributes:
        bare_trip: seconds of a round trip of 4 bytes by the communicator alone, the median.
        trip: the same in a world, where a thread waits.
        awaited_trip: the same, awaited, the receive posted ahead.
        bare_transfer: seconds of one of many transfers of 4 MB, one after the other.
        ordered: the same, where each keeps to the order of a caller's stream and its end is heard, as a world does.
        transfer: the same in a world, with ``stream=True``, in a call each.
        batched: the same, in calls of ``batch_p2p``.
    """

    bare_trip: float
    trip: float
    awaited_trip: float
    bare_transfer: float
    ordered: float
    transfer: float
    batched: float


def rounds(_: Context, folder: str, rank: int, backend: str, count: int) -> list[Round]:
    """Be ``rank`` of two; ``folder`` is theirs alone."""
    device = torch.device("cuda", rank % torch.cuda.device_count())
    bare = _Bare(Path(folder), rank, device)
    small = [torch.ones(1).to(device) for _ in range(2)]
    large = torch.ones(_ELEMENTS).to(device)

    async def main() -> list[Round]:
        async with MultiWorld() as mw:
            w = await mw.join("bench", rank, 2, store=f"file://{folder}/store", backend=backend, device=str(device))
            await _trips(w, small, 3)
            await _transfers(w, large, 3)
            await _batches(w, large, BATCH)
            found = []
            for _ in range(count):
                waited = await asyncio.to_thread(_waited_trips, w, small, device)
                trips = bare.trips(small), waited, await _trips(w, small, TURNS)
                transfers = bare.transfers(large), bare.ordered(large), await _transfers(w, large, TRANSFERS)
                found.append(Round(*trips, *transfers, await _batches(w, large, TRANSFERS)))
            return found

    return asyncio.run(main())


async def _trips(w: World, small: list[torch.Tensor], turns: int) -> float:
    seconds = []
    for _ in range(turns):
        began = time.perf_counter()
        receive = asyncio.ensure_future(w.recv(small[1], 1 - w.rank))
        await asyncio.sleep(0)  # it is posted
        if w.rank:
            await receive
            await w.send(small[0], 0)
        else:
            await w.send(small[0], 1)
            await receive
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


def _waited_trips(w: World, small: list[torch.Tensor], device: torch.device) -> float:
    torch.cuda.set_device(device)
    seconds = []
    for _ in range(TURNS):
        began = time.perf_counter()
        for sends in (False, True) if w.rank else (True, False):
            w.sync.send(small[0], 1 - w.rank) if sends else w.sync.recv(small[1], 1 - w.rank)
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


async def _transfers(w: World, large: torch.Tensor, count: int) -> float:
    await w.barrier()
    began = time.perf_counter()
    if w.rank:
        await asyncio.gather(*(w.recv(large, 0, stream=True) for _ in range(count)))
    else:
        for _ in range(count):
            await w.send(large, 1, stream=True)
    await w.synchronize()
    return (time.perf_counter() - began) / count


async def _batches(w: World, large: torch.Tensor, count: int) -> float:
    batch = [P2P("recv" if w.rank else "send", large, 1 - w.rank)] * BATCH
    await w.barrier()
    began = time.perf_counter()
    await asyncio.gather(*(w.batch_p2p(batch, stream=True) for _ in range(count // BATCH)))
    await w.synchronize()
    return (time.perf_counter() - began) / count


class _Bare:
    """A communicator of two without a world."""

    def __init__(self, folder: Path, rank: int, device: torch.device) -> None:
        self._nccl, self._rank = nccl.bindings(), rank
        self._stream = cuda.take_stream(device)
        self._comm = self._nccl.comm_init_rank(2, self._identity(folder / "id"), rank)
        torch.cuda.set_stream(torch.cuda.default_stream(device))

    def trips(self, small: list[torch.Tensor]) -> float:
        """Seconds of a round trip, the median."""
        seconds = []
        for _ in range(TURNS):
            began = time.perf_counter()
            for sends in (False, True) if self._rank else (True, False):
                self._enqueue(small[0] if sends else small[1], sends=sends)
                self._wait()
            seconds.append(time.perf_counter() - began)
        return statistics.median(seconds)

    def transfers(self, large: torch.Tensor) -> float:
        """Seconds of one transfer of many."""
        began = time.perf_counter()
        for _ in range(TRANSFERS):
            self._enqueue(large, sends=not self._rank)
        self._wait()
        return (time.perf_counter() - began) / TRANSFERS

    def ordered(self, large: torch.Tensor) -> float:
        """Seconds of one transfer of many, each after what the caller's stream did before and before what it does next;
        a thread hears their ends."""
        ends: queue.SimpleQueue[torch.cuda.Event | None] = queue.SimpleQueue()
        began, caller, stream = time.perf_counter(), torch.cuda.current_stream(), self._stream.torch
        hearing = threading.Thread(target=lambda: [event.synchronize() for event in iter(ends.get, None)])
        hearing.start()
        for _ in range(TRANSFERS):
            stream.wait_event(caller.record_event(torch.cuda.Event()))
            self._enqueue(large, sends=not self._rank)
            ends.put(stream.record_event(torch.cuda.Event(blocking=True)))
            caller.wait_stream(stream)
        ends.put(None)
        hearing.join()
        return (time.perf_counter() - began) / TRANSFERS

    def _enqueue(self, tensor: torch.Tensor, *, sends: bool) -> None:
        call = self._nccl.send if sends else self._nccl.recv
        call(tensor.data_ptr(), tensor.numel(), _FLOAT, 1 - self._rank, self._comm, self._stream.pointer)

    def _wait(self) -> None:
        event = torch.cuda.Event(blocking=True)
        event.record(self._stream.torch)
        event.synchronize()

    def _identity(self, path: Path) -> object:
        if self._rank == 0:
            made = self._nccl.get_unique_id()
            part = path.with_suffix(".part")
            part.write_bytes(ctypes.string_at(made.ptr, nccl.ID_BYTES))
            part.rename(path)
            return made
        until = time.monotonic() + 30.0
        while not path.exists():
            if time.monotonic() > until:
                raise TimeoutError("the other member has made no id")
            time.sleep(0.01)
        found = self._nccl.UniqueId()
        ctypes.memmove(found.ptr, path.read_bytes(), nccl.ID_BYTES)
        return found
