"""Speed of a world as a process group, in turns with the world's own calls and with plain Gloo.

Run ``python -m docs.bench.process_groups``: two processes on this machine, some seconds for each row. The figures are
first deciles over the turns, since what else runs only adds to a time.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta

import torch
import torch._dynamo  # DDP loads it: once here, and not in each process
import torch.distributed as dist
from torch import nn

from multiworld import MultiWorld

#: elements of the small all_reduce: 4 bytes
SMALL = 1
MEGABYTE = 1 << 20

Call = Callable[[], object]


def timed(calls: dict[str, Call], turns: int, each: int) -> dict[str, float]:
    """Time the calls in turns; the first decile of each, in microseconds."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(turns):
        for name, call in calls.items():
            began = time.perf_counter()
            for _ in range(each):
                call()
            found[name].append((time.perf_counter() - began) / each * 1e6)
    return {name: statistics.quantiles(times, n=10)[0] for name, times in found.items()}


def step_of(group: object, megabytes: int) -> Call:
    """Make a step of DDP over a model with so many megabytes of gradients, in four buckets."""
    layers = [nn.Linear(256, 256, bias=False) for _ in range(4 * megabytes)]
    net = nn.parallel.DistributedDataParallel(
        nn.Sequential(*layers), process_group=group, bucket_cap_mb=megabytes / 4, gradient_as_bucket_view=True
    )
    tensor = torch.ones(1, 256)

    def step() -> None:
        net.zero_grad(set_to_none=False)
        net(tensor).sum().backward()

    for _ in range(3):
        step()
    return step


def member(rank: int, folder: str, turns: int) -> None:
    """Be one of the two."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", store=dist.FileStore(f"{folder}/plain", 2), rank=rank, world_size=2, timeout=timedelta(minutes=5)
    )
    with MultiWorld(op_timeout=300.0) as mw:
        world = mw.sync.join("bench", rank, 2, store=f"file://{folder}/store", join_timeout=100.0)
        pg, small = world.process_group, torch.ones(SMALL)
        rows: dict[str, dict[str, Call]] = {
            "all_reduce, 4 bytes": {
                "world.sync.all_reduce": lambda: world.sync.all_reduce(small),
                "dist.all_reduce(group=pg)": lambda: dist.all_reduce(small, group=pg),
                "its future": lambda: dist.all_reduce(small, group=pg, async_op=True).get_future().wait(),
                "plain Gloo": lambda: dist.all_reduce(small),
                "plain Gloo's future": lambda: dist.all_reduce(small, async_op=True).get_future().wait(),
            }
        }
        for megabytes in (1, 25):
            steps = {"world": step_of(pg, megabytes), "plain Gloo": step_of(dist.group.WORLD, megabytes)}
            rows[f"DDP step, {megabytes} MB of gradients"] = steps
        for name, calls in rows.items():
            many = "DDP" not in name
            found = timed(calls, turns if many or "25" not in name else turns // 3, 50 if many else 1)
            if rank == 0:
                print(f"{name}: " + ", ".join(f"{what} {took:.0f} us" for what, took in found.items()), flush=True)
                if not many:
                    print(f"    ratio {found['world'] / found['plain Gloo']:.2f}", flush=True)
    dist.destroy_process_group()


def main() -> None:
    """Start the two."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=60)
    turns = parser.parse_args().turns
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory() as folder:
        members = [context.Process(target=member, args=(rank, folder, turns)) for rank in range(2)]
        for process in members:
            process.start()
        for process in members:
            process.join()
        raise SystemExit(max(abs(process.exitcode or 0) for process in members))


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
