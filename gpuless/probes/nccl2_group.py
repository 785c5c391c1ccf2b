"""Groups of nccl2, made directly: the constructor differs between 2.14 and 2.15."""

from __future__ import annotations

import datetime
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

# What torch hands out: its classes and their methods differ between releases.
TorchObject: TypeAlias = Any

DEVICE = torch.device("cuda:0")


def make(store: TorchObject, timeout: datetime.timedelta, lazy: bool = False, reconfigure: bool = False) -> TorchObject:
    """Return rank 0 of a group of two.

    Args:
        timeout: the limit of its operations.
        lazy: make the communicator with the first operation, as 2.14 always does; else, from 2.15, here.
        reconfigure: make no communicator before `reconfigure()`, and revoke a broken one instead of aborting it.
    """
    from torch._C._distributed_c10d import ProcessGroupNCCL2

    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    options.enable_reconfigure = reconfigure
    if lazy and hasattr(options, "lazy_init"):
        options.lazy_init = True
    try:
        return ProcessGroupNCCL2(store, 0, 2, options, DEVICE)
    except TypeError:  # 2.14 takes the device of the first tensor
        return ProcessGroupNCCL2(store, 0, 2, options)
