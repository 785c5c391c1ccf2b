"""The shape at the end of a message of ``send_tensor``, and the tensor that it makes of what came before it.

What the peer wrote is not trusted: a shape that does not fit its bytes is a typed error, and the world goes on.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING

import torch

from multiworld.errors import TensorMismatch
from multiworld.net.frames import DTYPES, dtype_name
from multiworld.ops.memory import bytes_of

if TYPE_CHECKING:
    from multiworld.session import Session


def shape_bytes(tensor: torch.Tensor) -> bytes:
    """The shape as it travels: each dimension as eight bytes, little-endian, then their number as one byte."""
    return struct.pack(f"<{tensor.dim()}qB", *tensor.shape, tensor.dim())


def with_shape(session: Session, peer: int, dtype: int, buffer: torch.Tensor) -> torch.Tensor:
    """The tensor that a message describes; it shares the memory of ``buffer``.

    Args:
        session: for messages.
        peer: world rank that sent it.
        dtype: the code of its dtype on the wire.
        buffer: the whole message as bytes, payload first.

    Raises:
        TensorMismatch: dtype, shape and length do not fit together.
    """
    shape = _shape(bytes_of(buffer))
    kind = DTYPES.get(dtype)
    if shape is None:
        raise _mismatch(session, peer, f"{buffer.numel()} bytes that do not end with a shape")
    if kind is None:
        raise _mismatch(session, peer, f"a tensor of {dtype_name(dtype)}, which this torch does not have")
    end = buffer.numel() - 8 * len(shape) - 1
    if min(shape, default=0) < 0 or math.prod(shape) * kind.itemsize != end:
        raise _mismatch(session, peer, f"{end} bytes for a tensor of {dtype_name(dtype)} of the shape {list(shape)}")
    try:
        return buffer[:end].view(kind).reshape(shape)
    except RuntimeError as error:  # such as an empty tensor whose other dimensions no tensor can have
        raise _mismatch(session, peer, f"the shape {list(shape)}: {error}") from None


def _shape(message: memoryview) -> tuple[int, ...] | None:
    dims = message[-1] if len(message) else 0
    end = len(message) - 1 - 8 * dims
    return struct.unpack_from(f"<{dims}q", message, end) if end >= 0 else None


def _mismatch(session: Session, peer: int, what: str) -> TensorMismatch:
    return TensorMismatch(
        session.name, f"rank {peer} sent {what}", cause="the peer runs another release, or is not one of ours",
        remedy="run the same release of the package and of torch everywhere; the world goes on", theirs={peer: what},
        generation=session.generation, rank=session.rank,
    )  # fmt: skip
