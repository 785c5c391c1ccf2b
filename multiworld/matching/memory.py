"""Memory for messages, and the bytes of tensors."""

from __future__ import annotations

import ctypes
import mmap

import torch

from multiworld.errors import InvalidArgument

_from_memory = ctypes.pythonapi.PyMemoryView_FromMemory
_from_memory.restype = ctypes.py_object
_from_memory.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)
_WRITABLE = 0x200  # PyBUF_WRITE of CPython's object.h
_EMPTY = memoryview(bytearray(0))
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


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The bytes of a contiguous CPU tensor, without a copy; valid while the tensor lives."""
    nbytes = tensor.nbytes
    if nbytes == 0:
        return _EMPTY
    address = tensor.data_ptr()
    if not address:  # the last line of defence: reading there would end the process
        raise InvalidArgument(what="the tensor has no memory", cause="it is fake, or its storage was resized to 0")
    view: memoryview = _from_memory(address, nbytes, _WRITABLE)
    return view
