"""One of two ranks of torch.distributed on NCCL; prints what it got as JSON. Arguments: the rank, a store's file."""

from __future__ import annotations

import json
import sys
from datetime import timedelta

import torch
import torch.distributed as dist


def on_device(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Return a tensor on the device; made on the CPU and copied, since kernels do not run."""
    return torch.tensor(values, dtype=dtype).cuda()


def main(rank: int, store: str) -> dict[str, object]:
    torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl", init_method=f"file://{store}", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    peer, seen = 1 - rank, dict[str, object]()
    reduced = on_device(rank + 1, rank + 1)
    dist.all_reduce(reduced)
    seen["reduced"] = reduced.tolist()
    gathered = [on_device(9) for _ in range(2)]
    dist.all_gather(gathered, on_device(rank))
    seen["gathered"] = [one.tolist() for one in gathered]
    mine, theirs = on_device(rank), on_device(9)
    operations = [dist.P2POp(dist.isend, mine, peer), dist.P2POp(dist.irecv, theirs, peer)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    seen["exchanged"] = theirs.tolist()
    halves = on_device(rank + 1, dtype=torch.bfloat16)
    dist.all_reduce(halves)
    seen["halves"] = halves.cpu().tolist()
    sent = on_device(7 if rank == 0 else 0)
    dist.broadcast(sent, 0)
    seen["broadcast"] = sent.tolist()
    dist.barrier()
    seen["barrier"] = "passed"
    second = on_device(rank + 1)
    dist.all_reduce(second, group=dist.new_group([0, 1]))
    seen["second group"] = second.tolist()
    torch.cuda.synchronize()
    dist.destroy_process_group()
    return seen


sys.stdout.write("\n" + json.dumps(main(int(sys.argv[1]), sys.argv[2])))
