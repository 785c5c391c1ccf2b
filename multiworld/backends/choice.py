"""The choice of the driver that a world on CUDA devices gets; one on the CPU needs none."""

from __future__ import annotations

import torch

# Not when they are needed: an import in the middle of a collective fails where no file descriptor is free.
from multiworld.backends import nccl, nccl_environment, torch_nccl
from multiworld.backends.device_members import Member
from multiworld.backends.setup_store import SetupStore
from multiworld.config import WorldConfig
from multiworld.engine import library
from multiworld.matching.driver import Driver


def make_driver(config: WorldConfig, place: int, size: int, store: SetupStore) -> Driver:
    """The driver for one group of a world on CUDA devices; made only, ``open`` connects it.

    Args:
        config: of the world.
        place: our rank in the group.
        size: of the group.
        store: where the group's members exchange what sets it up.
    """
    us = Member(config.name, config.rank, place, size, config.device)
    kind = nccl.NcclDriver if _has_bindings(config.backend) else torch_nccl.TorchNcclDriver
    return kind(store, us)


def settle_environment(backend: str, world: str, rank: int) -> None:
    """Set the variables that the driver of a backend for CUDA devices needs, in the thread that joins.

    A later change of the environment could crash the process: C code of other threads, torch's too, reads it meanwhile.

    Raises:
        BackendFailed: the user has set one of them otherwise.
    """
    if not _has_bindings(backend):
        nccl_environment.settle(world, rank)


def _has_bindings(backend: str) -> bool:
    return backend == "nccl" and nccl.unavailable() is None


def unavailable(backend: str) -> str | None:
    """Why a backend for CUDA devices cannot be used here; None if it can.

    Args:
        backend: ``"nccl"``: NVIDIA's bindings where they are installed, else torch's group; ``"torch-nccl"``.
    """
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    if not library.launch_functions():
        return "multiworld was built without a C++ compiler"
    group = torch_nccl.unavailable()
    if backend == "torch-nccl" or group is None:
        return group
    bindings = nccl.unavailable()
    return None if bindings is None else f"{group}, and {bindings}"
