"""The environment that torch's NCCL group needs to outlive a dead peer.

Nothing is set at import. ``settle`` sets what is missing when a world is joined; what the user set otherwise is
refused with the remedy, never changed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from multiworld.errors import BackendFailed


@dataclass(frozen=True, slots=True)
class Needed:
    """A variable that the driver ``torch-nccl`` depends on.

    Attributes:
        name: of the variable.
        value: what it has to be.
        why: what happens otherwise.
        may_be_unset: whether the default of every release is right.
        old: a name that torch reads where the first one is not set; empty for none.
    """

    name: str
    value: str
    why: str
    may_be_unset: bool = False
    old: str = ""

    def found(self, environment: Mapping[str, str]) -> tuple[str, str | None]:
        """The name under which torch reads it, and what it says there; None if it is not set."""
        name = self.old if self.old in environment and self.name not in environment else self.name
        return name, environment.get(name)


NEEDED = (
    Needed(
        *("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2"),
        "in any other mode torch ends this process over a dead peer, or leaves its kernel on the device; torchrun sets "
        "it to 1 for its workers, unless it is set where torchrun starts",
    ),
    Needed(
        *("TORCH_NCCL_DUMP_ON_TIMEOUT", "0"),
        "torch waits minutes for dumps of its flight recorder before it aborts, and its monitor then ends this process",
    ),
    Needed(
        *("TORCH_NCCL_CUDA_EVENT_CACHE", "0"),
        "torch 2.6 keeps CUDA events in a cache of the thread that launched, which ends with its world: use after free",
    ),
    Needed(
        *("TORCH_NCCL_BLOCKING_WAIT", "0", "a wait blocks the thread that launches, so that nothing can be aborted"),
        may_be_unset=True,
        old="NCCL_BLOCKING_WAIT",
    ),
)


def wrong(environment: Mapping[str, str]) -> list[Needed]:
    """Return the variables whose value is not the one that the driver ``torch-nccl`` needs."""
    return [one for one in NEEDED if one.found(environment)[1] not in (None, one.value)]


def settle(world: str, rank: int) -> None:
    """Set what is missing, for torch reads it when a group is made and when an error occurs.

    Raises:
        BackendFailed: the user has set something otherwise.
    """
    others = wrong(os.environ)
    if others:
        first = others[0]
        name, value = first.found(os.environ)
        what = f"{name} is {value!r} in the environment"
        remedy = f"unset {name} or set it to {first.value}, or use backend='nccl' with the extra 'nccl'"
        raise BackendFailed(world, what, cause=first.why, remedy=remedy, rank=rank)
    for one in NEEDED:
        if not one.may_be_unset:
            os.environ.setdefault(one.name, one.value)


def group_kind() -> Any:
    """The class of torch's NCCL group: the successor where it is there and not switched off; None without NCCL."""
    if os.environ.get("TORCH_DIST_USE_NCCL2") != "0":
        newer = getattr(getattr(torch._C, "_distributed_c10d", None), "ProcessGroupNCCL2", None)
        if newer is not None:
            return newer
    return getattr(dist, "ProcessGroupNCCL", None)


def group_version() -> str:
    """Return what all members of a world on torch's group must have in common."""
    version = ".".join(map(str, torch.cuda.nccl.version()))
    return f"{getattr(group_kind(), '__name__', 'no group')} on NCCL {version}"
