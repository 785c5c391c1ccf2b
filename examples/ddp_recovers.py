"""Training with DDP that survives a dead worker: one is killed in the middle, replaced, and the others go on.

Run ``python examples/ddp_recovers.py``. It starts three workers, kills one of them in the middle of a step, and starts
another one in its place. The others never leave their processes. All end with the same weights. With
``--without-replacement`` the two that are left finish the training.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import tempfile

import torch
import torch._dynamo  # DDP loads it: once here, and not in each worker
from torch import nn

import multiworld
from multiworld import MultiWorld

SIZE = 3
STEPS = 12
#: the step that a worker dies in, between its forward and its backward
FATAL_STEP = 5
#: seconds until all workers have joined: each loads what DDP needs first
JOIN_SECONDS = 100.0


def batch(step: int, rank: int) -> torch.Tensor:
    return torch.randn(16, 8, generator=torch.Generator().manual_seed(SIZE * step + rank))


def worker(rank: int, folder: str, dies: bool, replace: bool) -> None:
    """Train, and go on after the death of another one."""
    net: nn.Module = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 8))
    opt = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    with MultiWorld() as mw:
        world = mw.sync.join("training", rank, SIZE, store=f"file://{folder}/store", join_timeout=JOIN_SECONDS)
        pg = world.process_group
        ddp: list[nn.Module] = []

        def wrap() -> None:
            ddp.clear()  # the old one first: each hooks into the parameters
            ddp.append(nn.parallel.DistributedDataParallel(net, process_group=pg))

        def take_over(source: int) -> None:
            weights, moments = world.sync.broadcast_object((net.state_dict(), opt.state_dict()), source)
            net.load_state_dict(weights)
            opt.load_state_dict(moments)

        for attempt in multiworld.recovering(pg, range(STEPS), sync=take_over, reset=wrap, replace=replace):
            with attempt as step:
                opt.zero_grad()
                loss = ddp[0](batch(step, rank)).square().mean()
                if dies and step == FATAL_STEP:
                    os.kill(os.getpid(), signal.SIGKILL)
                loss.backward()
                opt.step()
        total = sum(float(parameter.detach().double().abs().sum()) for parameter in net.parameters())
        print(f"rank {pg.rank()} of {pg.size()}: done in generation {pg.generation}, weights {total:.9f}", flush=True)


def main() -> int:
    """Start the workers, and one more when the last of them has been killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--without-replacement", action="store_true")
    replace = not parser.parse_args().without_replacement
    context = multiprocessing.get_context("fork")  # what is loaded here, the workers need not load
    with tempfile.TemporaryDirectory() as folder:
        last = SIZE - 1
        workers = [context.Process(target=worker, args=(rank, folder, rank == last, replace)) for rank in range(SIZE)]
        for process in workers:
            process.start()
        workers[last].join()
        print(f"rank {last} was killed in step {FATAL_STEP}", flush=True)
        del workers[last]
        if replace:
            workers.append(context.Process(target=worker, args=(last, folder, False, replace)))
            workers[last].start()
        for process in workers:
            process.join()
        return max(abs(process.exitcode or 0) for process in workers)


if __name__ == "__main__":
    raise SystemExit(main())
