"""Memory for messages."""

from __future__ import annotations

import ctypes
import mmap

import torch

#: torch aligns its own memory to this, in bytes; its vector code is at its best there
ALIGNMENT = 64
#: above this, memory is taken from the kernel, which hands it out as it is filled
_LAZY_BYTES = 1 << 20


def room_for(nbytes: int, head: int = 0) -> memoryview:
    """Memory of our own that lives as long as its views, and is taken as it is filled: a peer said how much.

    Args:
        nbytes: its length.
        head: bytes before the part that lies at a multiple of ``ALIGNMENT``, so that tensors can be laid over it.

    Raises:
        MemoryError: so much cannot be had.
    """
    whole = _room_for(nbytes + ALIGNMENT - 1)
    begin = -(ctypes.addressof(ctypes.c_char.from_buffer(whole)) + head) % ALIGNMENT
    return whole[begin : begin + nbytes]


def _room_for(nbytes: int) -> memoryview:
    if nbytes <= _LAZY_BYTES:
        return memoryview(bytearray(nbytes))
    try:
        return memoryview(mmap.mmap(-1, nbytes))
    except (OSError, ValueError, OverflowError) as error:
        raise MemoryError(f"{nbytes} bytes") from error


def new_buffer(nbytes: int) -> torch.Tensor:
    """The same as a tensor of bytes.

    Raises:
        MemoryError: so much cannot be had.
    """
    try:
        return torch.empty(nbytes, dtype=torch.uint8, device="cpu")
    except RuntimeError as error:  # what torch raises for it
        raise MemoryError(f"{nbytes} bytes") from error
