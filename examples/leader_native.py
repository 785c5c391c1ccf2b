"""A leader in two worlds, one worker killed: the leader goes on with the other. In the native API.

Run ``python examples/leader_native.py``. It starts the two workers itself, kills one in the middle, and ends with the
worker's replacement in the same world.
"""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import time

import torch

from multiworld import MultiWorld, PeerLost, TcpStoreAddress, World

REQUESTS = 300
#: seconds until a worker has joined: it loads torch first, which takes long where much else runs
JOIN_SECONDS = 100.0


def worker(name: str, store: TcpStoreAddress) -> None:
    """Double whatever comes, until the world ends."""

    async def serve() -> None:
        async with MultiWorld() as mw:
            world = await mw.join(name, 1, 2, store=store)
            try:
                while True:
                    tensor = await world.recv_tensor(0, timeout=math.inf)  # a worker waits for work as long as it takes
                    await world.send_tensor(tensor * 2, 0)
            except PeerLost:  # the leader is through
                return

    asyncio.run(serve())


async def ask(world: World, count: int) -> int:
    """Send requests to the worker of a world and check the answers; how many were answered."""
    for number in range(count):
        await world.send_tensor(torch.full((1000,), float(number)), 1)
        answer = await world.recv_tensor(1)
        assert answer[0] == 2 * number
        await asyncio.sleep(0.002)
    return count


async def main() -> None:
    """Be the leader."""
    context = multiprocessing.get_context("spawn")
    async with MultiWorld() as mw:
        store = mw.serve_store()
        workers = {name: context.Process(target=worker, args=(name, store)) for name in ("left", "right")}
        for process in workers.values():
            process.start()
        joins = (mw.join(name, 0, 2, store=store, join_timeout=JOIN_SECONDS) for name in workers)
        left, _ = await asyncio.gather(*joins)
        print("both worlds are up")

        asking = {name: asyncio.create_task(ask(mw[name], REQUESTS)) for name in workers}
        await asyncio.sleep(0.2)
        workers["left"].kill()
        killed = time.monotonic()
        try:
            await asking["left"]
        except PeerLost as lost:
            after = (time.monotonic() - killed) * 1e3
            print(f"left: rank {lost.ranks[0]} is lost, noticed by {lost.how} after {after:.0f} ms")
        print(f"right: {await asking['right']} requests answered, not affected")

        spare = context.Process(target=worker, args=("left", store))
        spare.start()
        await left.rejoin()
        print(f"left: back as generation {left.generation}, {await ask(left, 10)} requests answered by the replacement")
    for process in (*workers.values(), spare):
        process.join()
    print("done")


if __name__ == "__main__":
    asyncio.run(main())
