"""A leader under load with three replicas of a model, each in a world of its own: one is killed, and replaced.

Run ``python examples/replicated_model.py``. The leader keeps every replica busy. One second in, one is killed; its
world breaks alone, and the other two go on. A second later a spare process takes its place, and the leader rejoins.
It ends with a plot of requests per second, in which these events are marked.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import tempfile
import time
from multiprocessing.synchronize import Event

import torch
from torch import nn

from multiworld import BrokenWorldException, MultiWorld, World

REPLICAS = 3
#: seconds: of the whole, until one is killed, until it is replaced, and of one bar of the plot
LENGTH, KILLED, REPLACED, BAR = 3.5, 1.0, 2.0, 0.25
FEATURES, BATCH = 256, 32
#: characters of the longest bar
WIDTH = 50


def replica(name: str, store: str, needed: Event) -> None:
    """Answer the leader's requests from when it is needed until the leader leaves."""
    needed.wait()
    torch.set_num_threads(1)
    model = nn.Sequential(nn.Linear(FEATURES, FEATURES), nn.ReLU(), nn.Linear(FEATURES, 1)).eval()
    request = torch.empty(BATCH, FEATURES)
    with MultiWorld() as mw, torch.inference_mode():
        world = mw.sync.join(name, 1, 2, store=store)
        try:
            while True:
                world.sync.recv(request, 0)
                world.sync.send(model(request), 0)
        except BrokenWorldException:  # the leader has left
            return


class Load:
    """Requests to all replicas for a while, when each was answered, and what happened meanwhile."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.answered: list[float] = []
        self.events: list[tuple[float, str]] = []

    @property
    def now(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.began

    def tell(self, event: str) -> None:
        """Note that something has happened."""
        self.events.append((self.now, event))
        print(f"{self.now:4.1f} s  {event}", flush=True)

    async def keep_busy(self, world: World) -> None:
        """Send one request after the other; where the replica is lost, wait for the next one."""
        request, answer = torch.randn(BATCH, FEATURES), torch.empty(BATCH, 1)
        while self.now < LENGTH:
            try:
                await world.send(request, 1)
                await world.recv(answer, 1)
                self.answered.append(self.now)
            except BrokenWorldException as error:  # noqa: PERF203 - the next request is another attempt
                self.tell(f"{world.name} is lost: {type(error).__name__}")
                await world.rejoin(timeout=60.0)
                self.tell(f"{world.name} is back in generation {world.generation}")

    def plot(self) -> None:
        """Print requests per second, with the events at their time."""
        bars = [0] * int(LENGTH / BAR)
        for at in self.answered:
            bars[min(int(at / BAR), len(bars) - 1)] += 1
        for place, count in enumerate(bars):
            marks = [what for at, what in self.events if place == min(int(at / BAR), len(bars) - 1)]
            bar = "#" * round(WIDTH * count / max(bars))
            print(f"{place * BAR:4.2f} s  {bar:{WIDTH}} {count / BAR:6.0f}/s  {'; '.join(marks)}", flush=True)


async def lead(store: str, victim: int, spare: Event) -> None:
    """Join all worlds and keep them busy; kill a process meanwhile, and have the spare one take its place."""
    async with MultiWorld() as mw:
        worlds = [await mw.join(f"replica-{number}", 0, 2, store=store) for number in range(REPLICAS)]
        load = Load()
        busy = [asyncio.ensure_future(load.keep_busy(world)) for world in worlds]
        await asyncio.sleep(KILLED)
        os.kill(victim, signal.SIGKILL)
        await asyncio.sleep(REPLACED - KILLED)
        spare.set()
        await asyncio.gather(*busy)
    load.plot()


def main() -> None:
    """Start the replicas and a spare one, and lead them."""
    start = multiprocessing.get_context("fork")  # what is loaded here, they need not load
    needed, spare = start.Event(), start.Event()
    needed.set()
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{folder}/store"
        places = [*((number, needed) for number in range(REPLICAS)), (1, spare)]
        processes = [start.Process(target=replica, args=(f"replica-{n}", store, event)) for n, event in places]
        for process in processes:
            process.start()
        asyncio.run(lead(store, processes[1].pid or 0, spare))
        for process in processes:
            process.join()


if __name__ == "__main__":
    main()
