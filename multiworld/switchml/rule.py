"""The rule by which the switch or Gloo gets an all-reduce. All ranks agree on what it looks at, so all decide alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

#: What the switch can add up.
DTYPES = (torch.float32, torch.int32)
_DEVICES = ("cpu", "cuda")


def reason_for_gloo(tensors: Sequence[torch.Tensor], operation: Any) -> str:
    """Why Gloo does this all-reduce, in a word; empty if the switch does it."""
    if operation != dist.ReduceOp.SUM:
        return "operation"
    if len(tensors) != 1:
        return "tensors"
    (tensor,) = tensors
    if tensor.dtype not in DTYPES:
        return "dtype"
    if tensor.layout is not torch.strided or tensor.device.type not in _DEVICES:
        return "layout"
    return "" if tensor.numel() else "empty"
