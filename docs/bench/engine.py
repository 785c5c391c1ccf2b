"""`python -m docs.bench.engine`: round trips on two compiled engines over loopback, in turns with plain Gloo.

It compiles `multiworld/engine` into a temporary folder with g++ and needs torch. See docs/notes/engine.md.
"""

from __future__ import annotations

import asyncio
import datetime
import importlib.util
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import torch
import torch.distributed as dist

from multiworld.matching.protocol import CODES

SOURCES = Path(__file__).parents[2] / "multiworld" / "engine"
TURNS = 15
#: bytes, and round trips in a turn
SIZES = ((4, 200), (4096, 200), (400_000, 50), (4 << 20, 10))
SECONDS = 60.0
KEY = 1
DONE = 1


def compiled() -> ModuleType:
    """Compile and import the binding."""
    with tempfile.TemporaryDirectory() as folder:
        made = Path(folder, "_engine.abi3.so")
        options = ["-std=c++20", "-O2", "-fPIC", "-shared", "-fvisibility=hidden", f"-I{SOURCES}", "-o", str(made)]
        subprocess.run(["g++", *options, *map(str, sorted(SOURCES.glob("*/*.cc")))], check=True)
        spec = importlib.util.spec_from_file_location("_engine", made)
        if spec is None or spec.loader is None:
            raise ImportError(f"{made} cannot be imported")
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    module.setup(torch.Tensor, torch.nn.Parameter, CODES, torch.strided)
    return module


class Member:
    """One of the two processes: its plain group and its engine.

    Args:
        rank: 0 begins each round trip.
        lane: socket to the other one.
    """

    def __init__(self, native: ModuleType, rank: int, lane: socket.socket, port: int) -> None:
        self.rank, self.peer = rank, 1 - rank
        self.engine = native.Engine(rank, {self.peer: lane.detach()}, 1 << 30)
        self.loop = asyncio.new_event_loop()
        self.futures: dict[int, asyncio.Future[None]] = {}
        for descriptor in (self.engine.readable(), self.engine.completed()):
            self.loop.add_reader(descriptor, self._move)
        patience = datetime.timedelta(seconds=SECONDS)
        dist.init_process_group(
            "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2, timeout=patience
        )

    def plain(self, tensor: torch.Tensor) -> None:
        """Make a round trip on torch's own group."""
        for acts in ((dist.send, dist.recv), (dist.recv, dist.send))[self.rank]:
            acts(tensor, self.peer)

    def synchronous(self, tensor: torch.Tensor) -> None:
        """Make one on the engine, in a thread that waits."""
        engine = self.engine
        for act in ((engine.send, engine.recv), (engine.recv, engine.send))[self.rank]:
            if act(self.peer, KEY, tensor, SECONDS)[0] != DONE:
                raise RuntimeError("a round trip failed")

    def awaited(self, tensor: torch.Tensor) -> None:
        """Make one on the engine, in an event loop; that is entered and left for each round trip, too."""
        self.loop.run_until_complete(self._awaited(tensor))

    async def _awaited(self, tensor: torch.Tensor) -> None:
        engine = self.engine
        for start in ((engine.start_send, engine.start_recv), (engine.start_recv, engine.start_send))[self.rank]:
            number = start(self.peer, KEY, tensor)
            if engine.notify(number):
                self.futures[number] = self.loop.create_future()
                await self.futures[number]
            if engine.outcome(number)[0] != DONE:
                raise RuntimeError("a round trip failed")

    def _move(self) -> None:
        for number in self.engine.progress():
            self.futures.pop(number).set_result(None)


def measure(member: Member) -> None:
    """Measure all ways in turns; rank 0 prints medians and first deciles in microseconds, and their ratios."""
    ways = {"plain": member.plain, "synchronous": member.synchronous, "awaited": member.awaited}
    for nbytes, count in SIZES:
        tensor = torch.zeros(nbytes, dtype=torch.uint8)
        times: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(TURNS):
            for way, round_trip in ways.items():
                dist.barrier()
                times[way] += [_timed(round_trip, tensor) for _ in range(count)]
        if member.rank == 0:
            _show(nbytes, times)


def _timed(round_trip: Callable[[torch.Tensor], None], tensor: torch.Tensor) -> float:
    began = time.perf_counter()
    round_trip(tensor)
    return (time.perf_counter() - began) * 1e6


def _show(nbytes: int, times: dict[str, list[float]]) -> None:
    middle = {way: statistics.median(found) for way, found in times.items()}
    tenth = {way: statistics.quantiles(found, n=10)[0] for way, found in times.items()}
    words = [f"{way} {middle[way]:.0f} ({tenth[way]:.0f}) us" for way in times]
    words += [f"{way} / plain {tenth[way] / tenth['plain']:.2f} by the first decile" for way in times if way != "plain"]
    sys.stdout.write(f"{nbytes} bytes: {', '.join(words)}\n")


def main() -> None:
    """Fork into the two members, and measure."""
    native = compiled()
    torch.set_num_threads(1)
    with socket.create_server(("127.0.0.1", 0)) as listener, socket.create_server(("127.0.0.1", 0)) as free:
        store = free.getsockname()[1]
        address = listener.getsockname()
        child = os.fork()
        lane = listener.accept()[0] if child else socket.create_connection(address)
    member = Member(native, 0 if child else 1, lane, store)
    measure(member)
    dist.barrier()
    if child:
        os.waitpid(child, 0)
    sys.stdout.flush()
    os._exit(0)  # Gloo's threads are the other process's, too, and are not joined


if __name__ == "__main__":
    main()
