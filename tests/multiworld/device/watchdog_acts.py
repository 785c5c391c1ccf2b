"""Acts of a member in the tests of torch's watchdog; imports nothing but torch and multiworld."""

from __future__ import annotations

import os
from pathlib import Path

import torch

from multiworld.backends.device_communicator import Member
from multiworld.backends.setup_store import SetupStore
from multiworld.backends.torch_nccl import TorchNcclCommunicator
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
    communicators = [TorchNcclCommunicator(Member("w", rank, rank, 2, "cuda:0")) for _ in range(_GROUPS)]
    return [_threads_of(communicator) for communicator in communicators]


def _threads_of(communicator: TorchNcclCommunicator) -> int:
    before = set(_TASKS.iterdir())
    communicator._group = communicator._made(SetupStore(lambda _key, _value: None, 1.0))
    return len(set(_TASKS.iterdir()) - before)
