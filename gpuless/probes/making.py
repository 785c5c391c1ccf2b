"""Communicators while they are made: what another thread, or the world that they are split from, does meanwhile."""

from __future__ import annotations

import fake
import torch
import torch.distributed as dist
from breakage import Call, answer, break_world, launches, raising
from ending import abort_of
from world import World, split_from

_INIT = ("ncclCommInitRank", "ncclCommInitRankConfig")
_PATIENCE = 15.0
_MOMENT = 3.0
#: calls of ncclGroupStart before the communicator is made: 2.2 has a group for that
_BEFORE = int(torch.__version__.startswith("2.2."))


def aborted() -> tuple[str, dict[str, object]]:
    """Abort while ncclCommInitRank waits for the peer, let it return, and look at its communicator."""
    sick, healthy = World(), World()
    healthy.run("all_reduce")
    for site in _INIT:
        fake.inject(site, fake.HANG)
    making = Call(lambda: sick.run("all_reduce"))
    fake.await_true(lambda: any(map(fake.hanging, _INIT)), _PATIENCE)
    detail: dict[str, object] = {"abort": answer(abort_of(sick.group), _PATIENCE)}
    fake.lift(*_INIT)
    detail["operation"] = making.answer(_PATIENCE)
    detail["aborted after"] = fake.await_true(sick.is_aborted, 5)
    if not launches(healthy, detail) or detail["other world"] != "returned":
        return "NOT_LAUNCHED", detail
    if "no answer" in (detail["abort"], detail["operation"]):
        return "STALLED", detail
    if detail["operation"] == "returned":
        return "NO_EXCEPTION", detail
    return ("OK" if detail["aborted after"] is not None else "NOT_ABORTED"), detail


def listed() -> tuple[str, dict[str, object]]:
    """Let `abort()` hang in the first communicator, and let the thread that makes the second one go on.

    It makes it within a coalescing region, so that an NCCL call, in which it can be held up, comes before the maps.
    """
    world = World()
    world.run("send")  # a communicator of its own
    fake.inject("ncclCommAbort", fake.HANG)

    def region() -> None:
        world.group._start_coalescing()
        fake.inject("ncclGroupStart", fake.HANG, after=_BEFORE, times=1)
        world.next_in_region()

    making = Call(region)
    detail: dict[str, object] = {"made": fake.await_true(lambda: fake.hanging("ncclGroupStart") > 0, _MOMENT)}
    aborting = Call(abort_of(world.group))
    detail["aborting"] = fake.await_true(lambda: fake.hanging("ncclCommAbort") > 0, _MOMENT)
    fake.lift("ncclGroupStart")
    detail["changed after"] = fake.await_true(lambda: fake.calls("ncclAllReduce") > 0, _MOMENT)
    detail |= {"making": making.answer(0), "abort": aborting.answer(0)}
    if detail["made"] is None or detail["aborting"] is None:
        return "BROKEN", detail
    return ("OK" if detail["changed after"] is None else "DATA_RACE"), detail


def split() -> tuple[str, dict[str, object]]:
    """Let ncclCommSplit wait for a peer, and the world that is split break."""
    breakage = break_world([], within=0, broken="second", until="", aborts=False)
    sick, detail = breakage.sick, breakage.detail
    fake.inject("ncclCommSplit", fake.HANG)
    child = split_from(sick.group, dist.PrefixStore("child", sick.store))
    Call(lambda: child.barrier())
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
