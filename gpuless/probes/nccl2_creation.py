"""A communicator of nccl2 is being made, its peer does not come, and the caller gives the world up."""

from __future__ import annotations

import datetime

import fake
import torch.distributed as dist
from breakage import answer, launches
from nccl2_group import make
from world import World, tensor

_INIT = ("ncclCommInitRank", "ncclCommInitRankConfig")


def run() -> tuple[str, dict[str, object]]:
    """Abort a world while its first operation makes its communicator; let NCCL come back, and look at both."""
    healthy = World("nccl2")
    healthy.run("all_reduce")
    comm = fake.comms()
    for site in _INIT:
        fake.inject(site, fake.HANG, comm=comm)
    store = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
    group = make(dist.PrefixStore("given up", store), datetime.timedelta(seconds=120), lazy=True)
    detail: dict[str, object] = {"first call": answer(lambda: group.allreduce([tensor(1)]), 2)}
    detail["abort"] = answer(group.abort)
    if not launches(healthy, detail):
        return "NOT_LAUNCHED", detail
    if detail["abort"] == "no answer":
        return "STALLED", detail
    fake.lift(*_INIT)
    detail["made after"] = fake.await_true(lambda: fake.comms() > comm, 5)
    detail["aborted after"] = fake.await_true(lambda: fake.is_aborted(comm), 5)
    return ("NOT_ABORTED" if detail["aborted after"] is None else "OK"), detail
