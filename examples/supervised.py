"""A worker that keeps its world: it sums numbers with the others, and goes on after any of them died.

Run one on each of several hosts, under whatever starts it again when it dies. It reads RANK, WORLD_SIZE, MASTER_ADDR
and MASTER_PORT, as torchrun, ``examples/kubernetes`` and ``examples/slurm`` set them, or takes its place by name:

    python examples/supervised.py --rank 0 --size 2 --store tcp://127.0.0.1:29500
    python examples/supervised.py --rank 1 --size 2 --store tcp://127.0.0.1:29500

Kill one, and start it again. SIGTERM ends one in good order. With ``--rounds`` it ends by itself after so many.
"""

from __future__ import annotations

import argparse
import sys
import time

import torch

from multiworld import BrokenWorldException, MultiWorld, Supervisor, Want
from multiworld.observe.endpoint import Endpoint
from multiworld.observe.json_log import JsonLog


def work(sup: Supervisor, rounds: int, pause: float, patience: float) -> None:
    """Take part in ``rounds`` sums, or until the supervisor drains; a round that fails comes again."""
    done = 0
    while done < rounds and not sup.draining:
        try:
            world = sup["workers"]
            numbers = torch.tensor([1.0, float(done)])
            world.sync.all_reduce(numbers)
            done += 1
            print(f"rank {world.rank} of {world.size}, generation {world.generation}: {numbers[0]:g}", flush=True)
            time.sleep(pause)
        except BrokenWorldException as error:  # noqa: PERF203 - the next round is another attempt
            print(f"{type(error).__name__}: {error.what}", flush=True)
            sup.reconcile()
            sup.wait_ready(patience)


def main() -> None:
    """Keep the world, and work."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int)
    parser.add_argument("--size", type=int)
    parser.add_argument("--store", default="env://")
    parser.add_argument("--rounds", type=int, default=sys.maxsize)
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two rounds")
    parser.add_argument("--patience", type=float, default=600.0, help="seconds to wait for the others")
    parser.add_argument("--http", help="HOST:PORT of /ready, /status and /metrics")
    args = parser.parse_args()
    want = Want(rank=args.rank, size=args.size, store=args.store)
    with MultiWorld() as mw, JsonLog(mw, sys.stderr), mw.maintain({"workers": want}) as sup:
        if args.http:
            host, port = args.http.rsplit(":", 1)
            endpoint = Endpoint(mw, int(port), host)
            print(f"serving {endpoint.url}", flush=True)
        sup.wait_ready(args.patience)
        work(sup, args.rounds, args.pause, args.patience)


if __name__ == "__main__":
    main()
