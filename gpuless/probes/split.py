"""A world breaks while another one is being split from it."""

from __future__ import annotations

import threading

import fake
import torch.distributed as dist
from breakage import answer, break_world, raising
from world import split_from

_PATIENCE = 10.0


def run() -> tuple[str, dict[str, object]]:
    """Let ncclCommSplit wait for a peer, and the world that is split break."""
    breakage = break_world([], within=0, broken="second", until="", aborts=False)
    sick, detail = breakage.sick, breakage.detail
    fake.inject("ncclCommSplit", fake.HANG)
    child = split_from(sick.group, dist.PrefixStore("child", sick.store))
    thread = threading.Thread(target=lambda: answer(lambda: child.barrier(), _PATIENCE), daemon=True)
    thread.start()
    fake.await_true(lambda: fake.hanging("ncclCommSplit") > 0, _PATIENCE)
    detail["splitting"] = fake.hanging("ncclCommSplit")
    fake.inject("ncclCommGetAsyncError", fake.FAIL, fake.REMOTE_ERROR, comm=min(sick.comms))
    detail["aborted after"] = fake.await_true(sick.is_aborted, _PATIENCE)
    detail["next call"] = answer(lambda: sick.run("all_reduce"))
    if not breakage.look_at_other_world():
        return "NOT_LAUNCHED", detail
    if detail["aborted after"] is None:
        return "NOT_ABORTED", detail
    return raising(detail["next call"]), detail
