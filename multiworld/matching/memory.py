"""The bytes of tensors."""

from __future__ import annotations

import ctypes

import torch

from multiworld.errors import InvalidArgument

_from_memory = ctypes.pythonapi.PyMemoryView_FromMemory
_from_memory.restype = ctypes.py_object
_from_memory.argtypes = (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)
_WRITABLE = 0x200  # PyBUF_WRITE of CPython's object.h
_EMPTY = memoryview(bytearray(0))


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
