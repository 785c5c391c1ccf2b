"""A leader in two worlds, one worker killed: the leader goes on with the other. In pymultiworld's API.

Nothing here is ours: the same file runs with pymultiworld 0.2.3. Run ``python examples/leader_pymultiworld.py``; it
starts the two workers itself and kills one in the middle.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time

import torch

from multiworld.communicator import BrokenWorldException
from multiworld.manager import WorldManager

REQUESTS = 300


async def worker(world_name: str, port: int) -> None:
    """Double whatever comes, until the world breaks."""
    print("torch is loaded", flush=True)
    manager = WorldManager()
    await manager.initialize_world(world_name, 1, 2, backend="gloo", addr="127.0.0.1", port=port)
    tensor = torch.zeros(1000)
    try:
        while True:
            await manager.communicator.recv(tensor, 0, world_name)
            await manager.communicator.send(tensor * 2, 0, world_name)
    except BrokenWorldException:
        pass
    manager.cleanup()


def start_worker(world_name: str, port: int) -> subprocess.Popen[str]:
    """Start a worker and wait until it has loaded torch: a world waits 30 s for its members, and no longer."""
    process = subprocess.Popen([sys.executable, __file__, world_name, str(port)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    process.stdout.readline()
    return process


async def ask(manager: WorldManager, world_name: str, count: int) -> int:
    """Send requests to the worker of a world and check the answers; how many were answered."""
    answer = torch.zeros(1000)
    for number in range(count):
        await manager.communicator.send(torch.full((1000,), float(number)), 1, world_name)
        await manager.communicator.recv(answer, 1, world_name)
        assert answer[0] == 2 * number
        await asyncio.sleep(0.002)
    return count


async def leader() -> None:
    """Serve with both workers, and with the one that is left."""
    manager = WorldManager()
    workers = {}
    for world_name in ("left", "right"):
        with socket.socket() as kept:  # nobody else gets the port while the worker loads torch
            kept.bind(("127.0.0.1", 0))
            port = kept.getsockname()[1]
            workers[world_name] = start_worker(world_name, port)
        await manager.initialize_world(world_name, 0, 2, backend="gloo", addr="127.0.0.1", port=port)
    print("both worlds are up", flush=True)

    asking = {world_name: asyncio.create_task(ask(manager, world_name, REQUESTS)) for world_name in workers}
    await asyncio.sleep(0.2)
    os.kill(workers["left"].pid, signal.SIGKILL)
    killed = time.monotonic()
    try:
        await asking["left"]
    except BrokenWorldException:
        print(f"left: broken, noticed after {(time.monotonic() - killed) * 1e3:.0f} ms", flush=True)
    print(f"right: {await asking['right']} requests answered, not affected", flush=True)
    assert manager.communicator.is_broken("left")
    assert not manager.communicator.is_broken("right")
    for process in workers.values():
        process.kill()
        process.wait()
    print("done", flush=True)
    manager.cleanup()


if __name__ == "__main__":
    asyncio.run(worker(sys.argv[1], int(sys.argv[2])) if len(sys.argv) > 1 else leader())
