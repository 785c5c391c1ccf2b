"""The frames that travel on a lane: a fixed header, then a payload of a length it says."""

from __future__ import annotations

import enum
import struct
from collections.abc import Callable
from typing import Final

#: kind, dtype code, flags, sequence number, key (group and tag), payload bytes; little-endian, 24 bytes
HEADER: Final = struct.Struct("<BBHIQQ")
HEADER_BYTES: Final = HEADER.size

Done = Callable[[], None]
#: where a payload belongs and what to do when it is there; None: the payload is dropped
Placement = tuple[memoryview | None, Done | None]


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
