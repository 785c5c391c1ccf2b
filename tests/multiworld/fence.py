"""Memory that nobody may touch once its fence is closed: an access ends the process, and so fails the test."""

from __future__ import annotations

import ctypes
import mmap
from typing import Any

import torch

from multiworld.matching.memory import bytes_of

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_NOTHING, _READ_WRITE = 0, 3  # PROT_NONE, PROT_READ | PROT_WRITE of mman.h


class Fenced:
    """A flat tensor of float32 on pages of its own.

    Attributes:
        tensor: ``count`` elements, each ``value``.
    """

    def __init__(self, count: int, value: float = 0.0) -> None:
        self._pages = mmap.mmap(-1, count * 4)
        self.tensor: Any = torch.frombuffer(self._pages, dtype=torch.float32)
        self.tensor.fill_(value)
        self._address, self._length = self.tensor.data_ptr(), count * 4

    def close(self) -> None:
        """Let every access from now on, by whatever thread, end the process or fail with ``EFAULT``."""
        self._protect(_NOTHING)

    def open(self) -> None:
        """Allow it again."""
        self._protect(_READ_WRITE)

    def _protect(self, how: int) -> None:
        if _libc.mprotect(self._address, self._length, how):
            raise OSError(ctypes.get_errno(), "mprotect")


def before_fence(tensor: torch.Tensor, gap: int) -> torch.Tensor:
    """A copy of a flat ``tensor`` that ends ``gap`` bytes before a page that nobody may touch."""
    data = bytes(bytes_of(tensor))
    length = -(-(len(data) + gap) // mmap.PAGESIZE) * mmap.PAGESIZE
    pages = mmap.mmap(-1, length + mmap.PAGESIZE)
    begin = length - gap - len(data)
    pages[begin : begin + len(data)] = data
    whole = torch.frombuffer(pages, dtype=torch.uint8)
    if _libc.mprotect(whole.data_ptr() + length, mmap.PAGESIZE, _NOTHING):
        raise OSError(ctypes.get_errno(), "mprotect")
    return torch.frombuffer(pages, dtype=tensor.dtype, count=len(tensor), offset=begin) if data else tensor
