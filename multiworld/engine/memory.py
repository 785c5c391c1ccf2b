"""Memory as the compiled engine takes it, and what it gives back; the tensors that are laid over it."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from multiworld.matching.collective_plan import Bytes
from multiworld.matching.device import Moment, Place
from multiworld.matching.protocol import CODES, Mode
from multiworld.matching.send_receive import End, Signature


def plain_signature(tensor: torch.Tensor) -> Signature:
    return Mode.FIXED, CODES[tensor.dtype], tensor.nbytes


def ready(end: End) -> tuple[torch.Tensor, Moment]:
    """The memory of an end that is ready, and when it may be used."""
    if end is None or end.data is None:
        raise LookupError("a transfer began without memory")
    return end.data, end.moment


def memory_of(keep: Any, end: End) -> int | Place | None:
    """The memory that a message comes to, as the compiled part takes it."""
    return end.place() if end is not None else None if keep is None else keep.data_ptr()


def said(data: Bytes | None) -> bytes | tuple[int, int] | None:
    """A payload as the compiled part takes it: bytes, or address and length."""
    if data is None or isinstance(data, bytes):
        return data
    return (ctypes.addressof(ctypes.c_char.from_buffer(data)), len(data)) if len(data) else (0, 0)


def view_of(keeper: Any, address: int, nbytes: int) -> memoryview:
    """Memory of the compiled engine's own, which lives as long as its views."""
    array = (ctypes.c_char * nbytes).from_address(address)
    array.keeper = keeper  # type: ignore[attr-defined]
    return memoryview(array).cast("B")


def tensor_over(keeper: Any, address: int, nbytes: int) -> torch.Tensor:
    if not nbytes:
        return torch.empty(0, dtype=torch.uint8, device="cpu")
    return torch.frombuffer(view_of(keeper, address, nbytes), dtype=torch.uint8)
