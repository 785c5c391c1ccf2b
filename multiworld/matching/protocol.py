"""What members have agreed on: the modes of messages, the codes of dtypes, the numbers of groups and channels.

The frames themselves are the compiled engine's, see ``engine/core/protocol.h``.
"""

from __future__ import annotations

import enum
from typing import Final

import torch

#: how many groups of a world may have collectives; a peer that names more makes them up
MAX_GROUPS: Final = 1 << 16


class Mode(enum.IntEnum):
    """The ways to agree on the length of a message."""

    FIXED = 0  # both sides name dtype and length, which must be equal
    TENSOR = 1  # the payload ends with its shape
    OBJECT = 2  # the payload is a pickle
    DEVICE = 3  # as FIXED, and the payload goes from device to device
    DEVICE_TENSOR = 4  # as TENSOR: its length and shape come on the lane, the payload goes from device to device


# The place in this tuple is the code on the wire: append only.
_NAMES: Final = (
    *("uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"),
    *("complex32", "complex64", "complex128", "bool", "float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64"),
    *("float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu", "float4_e2m1fn_x2"),
)
DTYPES: Final[dict[int, torch.dtype]] = {
    code: getattr(torch, name) for code, name in enumerate(_NAMES) if hasattr(torch, name)
}
CODES: Final[dict[torch.dtype, int]] = {dtype: code for code, dtype in DTYPES.items()}


def dtype_name(code: int) -> str:
    """Name of the dtype with that code, for messages."""
    return _NAMES[code] if code < len(_NAMES) else f"dtype #{code}"


def message_key(gid: int, tag: int) -> int:
    """One number for group and tag; messages match within it, in order."""
    return gid << 32 | tag


#: numbers of channels begin here; those of groups are below
_CHANNELS = 1 << 32
_RANK_BITS = 16


def channel(src: int, dst: int) -> int:
    """The number of the slot for messages of world rank ``src`` to ``dst`` that stay on the device.

    Each direction has one of its own, with a stream of its own: they never wait for each other.
    """
    return _CHANNELS | src << _RANK_BITS | dst


def ranks_of_channel(number: int) -> tuple[int, int] | None:
    """``src`` and ``dst`` of a channel; None for the number of a group."""
    if number < _CHANNELS:
        return None
    pair = number - _CHANNELS
    return pair >> _RANK_BITS, pair & ((1 << _RANK_BITS) - 1)
