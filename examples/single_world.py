"""Plain torch.distributed, all processes in one process group: what one dead rank does to it.

This is the counterpart of ``multiworld_asyncio.py`` in MultiWorld's manual, with the arguments it has there; nothing
of ``multiworld`` is used. Rank 0 receives from the other ranks in turn. All ranks on this host:

    python examples/single_world.py --backend gloo --worldsize 3 --addr 127.0.0.1

The same with one command per rank, on any hosts:

    python examples/single_world.py --backend gloo --addr 127.0.0.1 --multihost --worldsize 3 --rank 0
    python examples/single_world.py --backend gloo --addr 127.0.0.1 --multihost --worldsize 3 --rank 1
    python examples/single_world.py --backend gloo --addr 127.0.0.1 --multihost --worldsize 3 --rank 2

Then kill rank 1; each rank prints its process id. On Gloo, rank 0 gets an error from the receive that meets the dead
rank, goes on with rank 2, and rank 1 can never come back:

    rank 0: no more from rank 1: RuntimeError: [...] Connection closed by peer [127.0.0.1]:39342.
    rank 0: received 7 from rank 2

On NCCL:

    python examples/single_world.py --backend nccl --worldsize 3
    python examples/single_world.py --backend nccl --worldsize 3 --nccl_async_error_handle_cleanup

The first one ends rank 0 together with rank 1, on stock and on patched torch:

    rank 0: ended, killed by SIGABRT

The second one sets TORCH_NCCL_ASYNC_ERROR_HANDLING=2. With it, stock torch 2.6.0 lets rank 0 live and breaks its
promises. The receive from rank 2, which is alive, delivers nothing and says nothing:

    rank 0: no more from rank 1: DistBackendError: NCCL error in: [...] remote process exited or [...]
    rank 0: WRONG: the receive from rank 2 ended without data and without error
    rank 0: nobody is left to receive from; this process goes on
    rank 0: ended, exit status 0

Patched torch 2.6.0 raises an error for every receive of the broken process group:

    rank 0: no more from rank 1: DistBackendError: NCCL error: remote process exited or there was a network error
    rank 0: no more from rank 2: DistBackendError: NCCL communicator encountered error set by ProcessGroupNCCL: [...]
    rank 0: nobody is left to receive from; this process goes on
    rank 0: ended, exit status 0

Rank 2 is lost for rank 0 all the same: it is in the same world. These lines are from an imitated NCCL that reports the
death of a peer, as NCCL does for peers on other hosts. About a peer on the same host NCCL says nothing; then the
receive ends at its deadline, after 30 seconds.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import os
import signal
import socket
import sys
import time
from datetime import timedelta
from multiprocessing.connection import wait

import torch
import torch.distributed as dist

PORT = "29500"
INTERVAL = 0.5  # seconds between two messages of a rank
NOTHING = -1.0  # what a tensor holds that no data has reached
DEADLINE = timedelta(seconds=30)  # for one receive
GRACE = 5.0  # seconds that the other ranks may go on when rank 0 has ended


def receive_in_turn(size: int, device: torch.device) -> None:
    """Be rank 0: receive from the others in turn, until none is left."""
    sources = list(range(1, size))
    while sources:
        for source in tuple(sources):
            try:
                value = receive(source, device)
            except RuntimeError as error:
                print(f"rank 0: no more from rank {source}: {type(error).__name__}: {_first_line(error)}", flush=True)
                sources.remove(source)
                continue
            if value == NOTHING:
                print(f"rank 0: WRONG: the receive from rank {source} ended without data and without error", flush=True)
                sources.remove(source)
            else:
                print(f"rank 0: received {value:.0f} from rank {source}", flush=True)
    print("rank 0: nobody is left to receive from; this process goes on", flush=True)


def receive(source: int, device: torch.device) -> float:
    """One number from ``source``."""
    tensor = torch.tensor([NOTHING]).to(device)
    # With a deadline, this process waits, from torch 2.6 on. Without one (`dist.recv`), only the current stream waits:
    # if the sender dies, the stream goes on without data, and no torch can raise an error here.
    dist.irecv(tensor, source).wait(DEADLINE)
    return tensor.item()


def send_repeatedly(rank: int, device: torch.device) -> None:
    """Be another rank: send numbers to rank 0."""
    for number in itertools.count(1):
        try:
            dist.send(torch.tensor([float(number)]).to(device), 0)
        except RuntimeError as error:
            print(f"rank {rank}: cannot send any more: {type(error).__name__}: {_first_line(error)}", flush=True)
            return
        time.sleep(INTERVAL)


def run_rank(rank: int, arguments: argparse.Namespace) -> None:
    """Be one rank of the world, in this process."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends a rank even while it waits in torch
    os.environ["MASTER_ADDR"] = arguments.addr
    os.environ.setdefault("MASTER_PORT", PORT)
    device = _device(arguments, rank)
    print(f"rank {rank}: process {os.getpid()}", flush=True)
    dist.init_process_group(arguments.backend, rank=rank, world_size=arguments.worldsize)
    if rank == 0:
        receive_in_turn(arguments.worldsize, device)
    else:
        send_repeatedly(rank, device)


def _device(arguments: argparse.Namespace, rank: int) -> torch.device:
    """Return the device of a rank's tensors."""
    if arguments.backend != "nccl":
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if count < arguments.worldsize:  # NCCL accepts a device only once per host: pretend that each rank has its own
        os.environ.setdefault("NCCL_HOSTID", f"{socket.gethostname()}-{rank}")
    device = torch.device("cuda", rank % count)
    torch.cuda.set_device(device)
    return device


def run_all(arguments: argparse.Namespace) -> int:
    """Start all ranks on this host and say how each one ends; 1 if rank 0 does not survive."""
    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=run_rank, args=(rank, arguments)) for rank in range(arguments.worldsize)]
    for process in ranks:
        process.start()
    try:
        running = dict(enumerate(ranks))
        while 0 in running:
            wait([process.sentinel for process in running.values()])
            for rank in [rank for rank, process in running.items() if process.exitcode is not None]:
                print(f"rank {rank}: ended, {_ending(running.pop(rank).exitcode)}", flush=True)
        wait([process.sentinel for process in running.values()], GRACE)
    finally:
        for process in ranks:
            process.kill()
    return 0 if ranks[0].exitcode == 0 else 1


def _ending(status: int | None) -> str:
    return f"killed by {signal.Signals(-status).name}" if status and status < 0 else f"exit status {status}"


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]


def parsed() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Rank 0 receives from the others, in one process group.")
    parser.add_argument("--backend", default="gloo", choices=["gloo", "nccl"])
    parser.add_argument("--addr", default="127.0.0.1", help="address of rank 0")
    parser.add_argument("--worldsize", type=int, default=3)
    parser.add_argument("--rank", type=int, help="with --multihost: the rank of this process")
    parser.add_argument(
        "--multihost", action=argparse.BooleanOptionalAction, default=False, help="this process is one rank"
    )
    parser.add_argument(
        "--nccl_async_error_handle_cleanup",
        action=argparse.BooleanOptionalAction,
        default=False,
        help="set TORCH_NCCL_ASYNC_ERROR_HANDLING=2: clean up the process group, let the process live",
    )
    arguments = parser.parse_args()
    if arguments.worldsize < 2:
        parser.error("--worldsize: at least 2 ranks")
    if arguments.multihost != (arguments.rank is not None):
        parser.error("--multihost and --rank belong together")
    if arguments.rank is not None and arguments.rank not in range(arguments.worldsize):
        parser.error(f"--rank: 0 to {arguments.worldsize - 1}")
    return arguments


def main() -> int:
    """Be one rank, or start all of them."""
    arguments = parsed()
    if arguments.nccl_async_error_handle_cleanup:
        os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "2"
    if arguments.multihost:
        run_rank(arguments.rank, arguments)
        return 0
    return run_all(arguments)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
