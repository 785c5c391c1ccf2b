"""A round trip in pymultiworld's API, as a program of its own, for any interpreter that has ``multiworld.manager``.

Usage: ``python foreign.py RANK PORT BYTES TURNS``; rank 0 prints the seconds of each turn as JSON. It imports nothing
of this package but what pymultiworld 0.2.3 has as well, so that the same program measures both.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time


async def main(rank: int, port: int, nbytes: int, turns: int) -> None:
    import torch

    from multiworld.manager import WorldManager

    torch.set_num_threads(1)
    manager = WorldManager()
    await manager.initialize_world("bench", rank, 2, backend="gloo", addr="127.0.0.1", port=port)
    tensor, seconds = torch.zeros(nbytes, dtype=torch.uint8), []
    communicator = manager.communicator
    for _ in range(turns):
        started = time.perf_counter()
        for sending in (rank == 0, rank == 1):
            if sending:
                await communicator.send(tensor, 1 - rank, "bench")
            else:
                await communicator.recv(tensor, 1 - rank, "bench")
        seconds.append(time.perf_counter() - started)
    if rank == 0:
        sys.stdout.write("SECONDS " + json.dumps(seconds) + "\n")
        sys.stdout.flush()
    await asyncio.sleep(0.5)  # the other side may still be reading
    manager.cleanup()


if __name__ == "__main__":
    asyncio.run(main(*map(int, sys.argv[1:])))
