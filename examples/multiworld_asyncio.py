"""A leader in several worlds receives from one worker in each; a worker dies, and the other worlds go on.

This is the program of MultiWorld's manual, with the arguments it has there. ``--worldinfo W,R`` joins world ``W`` as
rank ``R``. Each world has two members: rank 0 receives, rank 1 sends. A leader names several worlds. Rank 0 of a world
hosts its store at ``--addr``, on port 29500 + 1000 W. Run one command per terminal, within 30 seconds:

    python examples/multiworld_asyncio.py --backend gloo --worldinfo 1,0 --worldinfo 2,0 --addr 127.0.0.1
    python examples/multiworld_asyncio.py --backend gloo --worldinfo 1,1 --addr 127.0.0.1
    python examples/multiworld_asyncio.py --backend gloo --worldinfo 2,1 --addr 127.0.0.1

Then kill the second one; it prints its process id. The leader loses world 1 and goes on receiving in world 2:

    world1: received 4 from rank 1
    world2: received 4 from rank 1
    world1: broken: ranks (1,) are lost, noticed by eof
    world2: received 5 from rank 1

It ends when it has no world left. For several hosts, give the address of the leader's host to all. For GPUs, write
``--backend nccl``: rank R takes the device R of its host. If there are fewer devices than ranks, both ranks take the
same one; then put ``NCCL_HOSTID=$$`` before each command, because NCCL accepts a device only once per host.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
from dataclasses import dataclass

import torch

from multiworld.communicator import BrokenWorldException
from multiworld.errors import PeerLost
from multiworld.manager import WorldManager

SIZE = 2
FIRST_PORT, PORTS_APART = 29500, 1000
INTERVAL = 0.5  # seconds between two messages


@dataclass(frozen=True)
class Member:
    """One ``--worldinfo``: the number of a world, and our rank there."""

    world: int
    rank: int

    @property
    def name(self) -> str:
        return f"world{self.world}"

    @property
    def port(self) -> int:
        return FIRST_PORT + PORTS_APART * self.world


def member(text: str) -> Member:
    """Read ``W,R``; argparse shows the error."""
    try:
        world, rank = (int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not W,R: the number of a world and a rank, e.g. 1,0") from None
    if rank not in range(SIZE) or not 0 <= world <= (65535 - FIRST_PORT) // PORTS_APART:
        raise argparse.ArgumentTypeError(f"{text!r}: ranks are 0 and 1, worlds 0 to 36")
    return Member(world, rank)


def device_of(backend: str, rank: int) -> torch.device:
    """Return the device of a rank's tensors."""
    return torch.device("cuda", rank % torch.cuda.device_count()) if "nccl" in backend else torch.device("cpu")


async def receive(manager: WorldManager, us: Member, device: torch.device) -> None:
    """Receive until the world breaks."""
    tensor = torch.zeros(1).to(device)
    while True:
        await manager.communicator.recv(tensor, 1, us.name)
        print(f"{us.name}: received {tensor.item():.0f} from rank 1", flush=True)


async def send(manager: WorldManager, us: Member, device: torch.device) -> None:
    """Send numbers until the world breaks."""
    for number in itertools.count(1):
        await manager.communicator.send(torch.tensor([float(number)]).to(device), 0, us.name)
        await asyncio.sleep(INTERVAL)


async def take_part(manager: WorldManager, us: Member, arguments: argparse.Namespace) -> None:
    """Join one world and do our part in it until it breaks."""
    device = device_of(arguments.backend, us.rank)
    await manager.initialize_world(
        us.name, us.rank, SIZE, backend=arguments.backend, addr=arguments.addr, port=us.port, device=device
    )
    print(f"{us.name}: joined as rank {us.rank}, process {os.getpid()}", flush=True)
    try:
        await (receive if us.rank == 0 else send)(manager, us, device)
    except PeerLost as lost:
        print(f"{us.name}: broken: ranks {lost.ranks} are lost, noticed by {lost.how}", flush=True)
    except BrokenWorldException as error:
        print(f"{us.name}: broken: {error}", flush=True)


async def main(arguments: argparse.Namespace) -> None:
    """Be a member of all the worlds that the command line names, at the same time."""
    manager = WorldManager()
    try:
        await asyncio.gather(*(take_part(manager, us, arguments) for us in arguments.worldinfo))
        print("no world is left", flush=True)
    finally:
        manager.cleanup()


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Receive in several worlds, or send in one.")
    parser.add_argument("--backend", default="gloo", choices=["gloo", "nccl", "torch-nccl"])
    parser.add_argument("--addr", default="127.0.0.1", help="address of rank 0")
    parser.add_argument(
        "--worldinfo", type=member, action="append", required=True, metavar="W,R", help="world W as rank R; repeatable"
    )
    return parser.parse_args()


if __name__ == "__main__":
    try:
        asyncio.run(main(parsed()))
    except KeyboardInterrupt:
        print("interrupted", flush=True)
