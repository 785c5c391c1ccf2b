"""A rank of two of nccl2, each with a world of its own besides: `RANK PORT`.

Says "ready" after the first collective, waits for a line, and goes on as if its peer were alive; prints as JSON what
the caller of the shared world gets, what abort() does, and what the other world then computes.
"""

from __future__ import annotations

import datetime
import importlib
import json
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

ProcessGroupNCCL2: Any = importlib.import_module("torch._C._distributed_c10d").ProcessGroupNCCL2  # not in every torch
rank, port = map(int, sys.argv[1:])
device = torch.device("cuda", rank)
store = dist.TCPStore("127.0.0.1", port, 2, is_master=False, wait_for_workers=False)


def group(name: str, own: int, size: int) -> Any:
    options: Any = dist.ProcessGroupNCCL.Options()
    options._timeout = datetime.timedelta(seconds=60)
    options.config.blocking = 0
    try:
        return ProcessGroupNCCL2(dist.PrefixStore(name, store), own, size, options, device)
    except TypeError:  # 2.14 takes the device of the first tensor
        return ProcessGroupNCCL2(dist.PrefixStore(name, store), own, size, options)


def say(what: object) -> None:
    sys.stdout.write(f"{json.dumps(what)}\n")
    sys.stdout.flush()


def use(world: Any) -> str:
    """Return what the caller of an operation gets, at the latest when the watchdog has seen a failure."""
    try:
        work = world.allreduce([shared])
        end = time.monotonic() + 30
        while str(world.get_error()).endswith("SUCCESS") and time.monotonic() < end:
            time.sleep(0.05)
        work.wait()
    except RuntimeError as error:
        return str(error)
    return "no error"


shared, own = torch.ones(4).to(device), torch.ones(4).to(device)
both, alone = group("both", rank, 2), group(f"alone {rank}", 0, 1)
for world, tensor in ((both, shared), (alone, own)):
    world.allreduce([tensor]).wait()
say(shared.cpu().tolist())
sys.stdin.readline()
answer = {"error": use(both)}
both.abort()
alone.allreduce([own]).wait()
say({**answer, "own": own.cpu().tolist()})
os._exit(0)
