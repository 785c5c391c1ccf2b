"""The form of torch that the tests run on; imports no more than torch and the package."""

from __future__ import annotations

from importlib import metadata

import torch

from multiworld.backends import nccl_environment


def is_patched() -> bool:
    """Return whether this torch is a patched wheel, or stock with an overlay."""
    overlaid = any("multiworld_torch_overlay" in (d.name or "").replace("-", "_") for d in metadata.distributions())
    return ".mw" in torch.__version__ or overlaid


def is_official() -> bool:
    """Return whether this torch is neither patched nor overlaid, and its NCCL group the classic one."""
    classic = nccl_environment.group_kind() is getattr(torch.distributed, "ProcessGroupNCCL", None)
    return classic and not is_patched()
