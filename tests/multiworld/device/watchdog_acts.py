"""Acts of a member in the tests of torch's watchdog; imports nothing but torch and multiworld."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from multiworld.backends.device_members import Member
from multiworld.backends.setup_store import SetupStore
from multiworld.backends.torch_nccl import TorchNcclDriver
from multiworld.lab.context import Context
from tests.multiworld.device.members import Place

_GROUPS = 5
_TASKS = Path("/proc/self/task")


def makes_groups(_link: Context, _place: Place, rank: int) -> list[int] | None:
    """Make groups on one processor; the threads that each has when its communicator may be made.

    None for a torch whose watchdog does not start the heartbeat monitor, or is not known to.
    """
    if not (2, 4) <= tuple(map(int, torch.__version__.split(".")[:2])) < (2, 7):
        return None
    os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
    drivers = [
        TorchNcclDriver(SetupStore(lambda _key, _value: None, 1.0), Member("w", rank, rank, 2, "cuda:0"))
        for _ in range(_GROUPS)
    ]
    return [_threads_of(driver) for driver in drivers]


def _threads_of(driver: TorchNcclDriver) -> int:
    before = set(_TASKS.iterdir())
    driver._group = driver._new_group(driver._store)
    return len(set(_TASKS.iterdir()) - before)
