"""A launch of nccl2 hangs in NCCL, as while it connects to a dead peer, and holds the group's lock."""

from __future__ import annotations

import fake
import torch
from breakage import answer, launches, pair
from world import DEVICE, tensor

_SEGMENT = 64 << 20  # bytes: more than the caching allocator has at hand

_KEPT: list[torch.Tensor] = []  # freed on purpose alone: the end of a function may have to wait for the allocator


def run(site: str, operation: str, allocate: bool = False) -> tuple[str, dict[str, object]]:
    """Let a launch hang; use another world, and abort the hanging one.

    Args:
        site: the NCCL call that hangs.
        operation: the operation that makes it.
        allocate: let another thread allocate device memory meanwhile; nccl2 registers it with every group.
    """
    sick, healthy = pair("nccl2")
    _KEPT.append(tensor(1))
    fake.inject(site, fake.HANG, times=1)  # the next call in the process is the one below
    detail: dict[str, object] = {"launch": answer(lambda: sick.start(operation), 2)}
    if allocate:
        detail["allocation"] = answer(lambda: torch.empty(_SEGMENT, dtype=torch.uint8, device=DEVICE))
        detail["free"] = answer(_KEPT.clear)
    if not launches(healthy, detail):
        return "NOT_LAUNCHED", detail
    detail["abort"] = answer(sick.group.abort)
    return ("STALLED" if detail["abort"] == "no answer" else "OK"), detail
