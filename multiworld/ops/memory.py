"""Tensors as memory: views of their bytes, and the checks that make that safe."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import torch

from multiworld.errors import InvalidArgument
from multiworld.net.frames import CODES

if TYPE_CHECKING:
    from multiworld.ops.base import GroupBase

_from_memory = ctypes.pythonapi.PyMemoryView_FromMemory
_from_memory.restype = ctypes.py_object
_from_memory.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)
_WRITABLE = 0x200  # PyBUF_WRITE of CPython's object.h
EMPTY = memoryview(bytearray(0))


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, without a copy; valid while the tensor lives."""
    nbytes = tensor.numel() * tensor.element_size()
    if nbytes == 0:
        return EMPTY
    view: memoryview = _from_memory(tensor.data_ptr(), nbytes, _WRITABLE)
    return view


def check_tensor(group: GroupBase, operation: str, tensor: torch.Tensor) -> int:
    """Check that ``tensor`` can be sent or received as it lies; its dtype's code on the wire.

    Raises:
        InvalidArgument: not a tensor, not dense, not contiguous, not on the world's device, or of an unknown dtype.
    """
    if not isinstance(tensor, torch.Tensor):
        raise invalid(
            group, operation, f"{type(tensor).__name__} given where a tensor is expected", "pass a torch.Tensor"
        )
    if tensor.layout is not torch.strided or not tensor.is_contiguous():
        raise invalid(
            group, operation, "the tensor is not contiguous", "pass tensor.contiguous(), and copy back what is received"
        )
    if tensor.device.type != group.device.type and tensor.device.type != "cpu":
        raise invalid(
            group,
            operation,
            f"the tensor is on {tensor.device}, the world on {group.device}",
            "move the tensor, or join with device= of the tensors",
        )
    code = CODES.get(tensor.dtype)
    if code is None:
        raise invalid(
            group, operation, f"tensors of {tensor.dtype} cannot be sent", "convert the tensor, or send it as an object"
        )
    return code


def invalid(group: GroupBase, operation: str, what: str, remedy: str) -> InvalidArgument:
    """An ``InvalidArgument`` for a call on ``group``."""
    world: Any = group._world
    return InvalidArgument(
        world.name, what, remedy=remedy, generation=world.generation, rank=world.world_rank, operation=operation
    )


def check_rank(group: GroupBase, operation: str, what: str, rank: int) -> int:
    """Check that ``rank`` is one of the group; the world rank it stands for."""
    if not isinstance(rank, int) or not 0 <= rank < len(group.ranks):
        raise invalid(
            group, operation, f"{what} is {rank!r}, not a rank of 0 to {len(group.ranks) - 1}", f"correct {what}"
        )
    return group.ranks[rank]
