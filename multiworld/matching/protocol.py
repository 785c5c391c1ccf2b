"""The frames that travel on a lane: a fixed header, then a payload of a length it says."""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable
from typing import Final, Protocol

import torch

#: kind, dtype code, flags, sequence number, key (group and tag), payload bytes; little-endian, 24 bytes
HEADER: Final = struct.Struct("<BBHIQQ")
pack: Final = HEADER.pack
unpack_from: Final = HEADER.unpack_from
HEADER_BYTES: Final = HEADER.size
#: how many groups of a world may have collectives; a peer that names more makes them up
MAX_GROUPS: Final = 1 << 16


Done = Callable[[], None]
#: where a payload belongs and what to do when it is there; None: the payload is dropped
Placement = tuple[memoryview | None, Done | None]


class Sent(Protocol):
    """Owner of a frame, told when the last byte of it is written."""

    def on_sent(self) -> None:
        """All of the frame is written."""


class Kind(enum.IntEnum):
    """The meaning of a frame."""

    POST = 1  # a receive is posted: seq, key, dtype, flags = mode, nbytes = length (fixed) or limit (self-describing)
    DATA = 2  # the payload for the post of that seq; flags = mode: what stays on the device has no payload here
    REJECT = 3  # the send matched with the post of that seq differs: dtype, flags = mode, nbytes are the sender's
    CANCEL = 4  # withdraw the post of that seq
    CANCELLED = 5  # the post of that seq is withdrawn; no payload will come for it
    ANY = 6  # a receive from any source is posted: seq names it
    OFFER = 7  # there is a send for the any-source receive of that seq
    ANY_DONE = 8  # the any-source receive of that seq needs no offers any more
    FINGERPRINT = 9  # what the sender calls as its collective number seq of the group; flags = bytes of fingerprint
    VALUE = 10  # a key and its value for the set-up of a backend; flags = bytes of key
    BYE = 11  # the sender leaves in good order; nothing follows; flags = 1: collectives that it began are given up
    TAKE = 12  # the next post of that key answers the offer for the any-source receive of that seq


#: kinds whose ``nbytes`` follow the header; in others it is only said
WITH_PAYLOAD: Final = frozenset({Kind.DATA, Kind.FINGERPRINT, Kind.VALUE})


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
