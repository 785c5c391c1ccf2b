"""The shape at the end of a message of ``send_tensor``, and the tensor that it makes of what came before it.

What the peer wrote is not trusted: a shape that does not fit its bytes is a typed error, and the world goes on.
"""

from __future__ import annotations

import math
import struct

import torch

from multiworld.errors import TensorMismatch
from multiworld.matching.membership import Membership
from multiworld.matching.memory import bytes_of
from multiworld.matching.protocol import DTYPES, dtype_name


def shape_bytes(tensor: torch.Tensor) -> bytes:
    """The shape as it travels: each dimension as eight bytes, little-endian, then their number as one byte."""
    return struct.pack(f"<{tensor.dim()}qB", *tensor.shape, tensor.dim())


def with_shape(us: Membership, peer: int, dtype: int, buffer: torch.Tensor) -> torch.Tensor:
    """The tensor that a message describes; it shares the memory of ``buffer``, the message with the payload first.

    Raises:
        TensorMismatch: dtype, shape and length do not fit together.
    """
    shape = _shape(bytes_of(buffer))
    if shape is None:
        raise _mismatch(us, peer, f"{buffer.numel()} bytes that do not end with a shape")
    return _made(us, peer, dtype, buffer[: buffer.numel() - 8 * len(shape) - 1], shape)


def described(us: Membership, peer: int, dtype: int, data: torch.Tensor, said: bytes) -> torch.Tensor:
    """The same for a payload whose shape came apart from it; arguments and errors as of ``with_shape``."""
    shape = _shape(memoryview(said))
    if shape is None or len(said) != 8 * len(shape) + 1:
        raise _mismatch(us, peer, f"{len(said)} bytes that are no shape")
    return _made(us, peer, dtype, data, shape)


def _made(us: Membership, peer: int, dtype: int, data: torch.Tensor, shape: tuple[int, ...]) -> torch.Tensor:
    kind = DTYPES.get(dtype)
    if kind is None:
        raise _mismatch(us, peer, f"a tensor of {dtype_name(dtype)}, which this torch does not have")
    nbytes = data.numel()
    if min(shape, default=0) < 0 or math.prod(shape) * kind.itemsize != nbytes:
        raise _mismatch(us, peer, f"{nbytes} bytes for a tensor of {dtype_name(dtype)} of the shape {list(shape)}")
    try:
        return data.view(kind).reshape(shape)
    except RuntimeError as error:  # such as an empty tensor whose other dimensions no tensor can have
        raise _mismatch(us, peer, f"the shape {list(shape)}: {error}") from None


def _shape(message: memoryview) -> tuple[int, ...] | None:
    dims = message[-1] if len(message) else 0
    end = len(message) - 1 - 8 * dims
    return struct.unpack_from(f"<{dims}q", message, end) if end >= 0 else None


def _mismatch(us: Membership, peer: int, what: str) -> TensorMismatch:
    cause = "the peer runs another release, or is not one of ours"
    remedy = "run the same release of the package and of torch everywhere; the world goes on"
    said, theirs = f"rank {peer} sent {what}", {peer: what}
    return TensorMismatch(us.name, said, cause=cause, remedy=remedy, theirs=theirs, **us.where())
