"""A group that goes on with whoever is left: from 4 members to 3, when one is killed, and to 5, when two more come.

    python examples/elastic_group.py

Four workers add up ones, again and again. One of them is killed; the others go on without it. Then two newcomers wait
at the door, and the others take them in between two sums. Nobody else stops.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time

import torch

from multiworld import MultiWorld, PeerLost
from multiworld.worlds.world import World

SIZE = 4
VICTIM = 1
NEWCOMERS = 2
LAST_SIZE = SIZE - 1 + NEWCOMERS
#: sums of each size
ROUNDS = 20
#: seconds until all workers have joined, on a busy machine
JOIN_SECONDS = 100.0


def serve(world: World, dies: bool) -> None:
    """Add up ones: first with all, then without the victim, then with the newcomers."""
    done = 0
    while world.size < LAST_SIZE or done < ROUNDS:
        total = torch.ones(1)
        try:
            world.sync.all_reduce(total)
            assert int(total) == world.size
            done += 1
            if dies and done == ROUNDS:
                os.kill(os.getpid(), signal.SIGKILL)
            # A safe point of all members. Where nobody waits, ``grow`` only asks rank 0.
            if world.generation > 1 and world.size < LAST_SIZE and done >= ROUNDS:
                before = world.size
                if world.sync.grow().size > before:
                    done = 0
                    say(world)
        except PeerLost:
            world.sync.shrink(min_size=SIZE - 1)
            done = 0
            say(world)
        time.sleep(0.01)


def say(world: World) -> None:
    """Tell from one member how the world stands."""
    if world.world_rank == 0:
        print(f"generation {world.generation}: old ranks {[one.old_rank for one in world.members]}", flush=True)


def worker(rank: int, store: str) -> None:
    """Be one of the first members."""
    with MultiWorld() as mw:
        world = mw.sync.join("group", rank, SIZE, store=store, join_timeout=JOIN_SECONDS)
        serve(world, rank == VICTIM)


def newcomer(store: str) -> None:
    """Wait at the door, and be one of the members then."""
    with MultiWorld() as mw:
        world = mw.sync.join("group", store=store, grow=True, join_timeout=JOIN_SECONDS)
        print(f"newcomer: rank {world.world_rank} of {world.size}", flush=True)
        serve(world, False)


def main() -> int:
    """Start the workers, and the newcomers when one of the workers has been killed."""
    context = multiprocessing.get_context("fork")  # what is loaded here, the workers need not load
    with tempfile.TemporaryDirectory() as folder:
        store = f"file://{folder}/store"
        workers = [context.Process(target=worker, args=(rank, store)) for rank in range(SIZE)]
        for process in workers:
            process.start()
        workers[VICTIM].join()
        print(f"rank {VICTIM} was killed", flush=True)
        del workers[VICTIM]
        for _ in range(NEWCOMERS):
            workers.append(context.Process(target=newcomer, args=(store,)))
            workers[-1].start()
        for process in workers:
            process.join()
        return max(abs(process.exitcode or 0) for process in workers)


if __name__ == "__main__":
    raise SystemExit(main())
