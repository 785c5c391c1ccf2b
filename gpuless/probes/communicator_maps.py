"""A communicator is made while another thread goes through the communicators of its process group."""

from __future__ import annotations

import fake
import torch
from breakage import Call
from ending import abort_of
from world import World

_PATIENCE = 3.0
#: calls of ncclGroupStart before the communicator is made: 2.2 has a group for that
_BEFORE = int(torch.__version__.startswith("2.2."))


def run() -> tuple[str, dict[str, object]]:
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
    detail: dict[str, object] = {"made": fake.await_true(lambda: fake.hanging("ncclGroupStart") > 0, _PATIENCE)}
    aborting = Call(abort_of(world.group))
    detail["aborting"] = fake.await_true(lambda: fake.hanging("ncclCommAbort") > 0, _PATIENCE)
    fake.lift("ncclGroupStart")
    detail["changed after"] = fake.await_true(lambda: fake.calls("ncclAllReduce") > 0, _PATIENCE)
    detail |= {"making": making.answer(0), "abort": aborting.answer(0)}
    if detail["made"] is None or detail["aborting"] is None:
        return "BROKEN", detail
    return ("OK" if detail["changed after"] is None else "DATA_RACE"), detail
