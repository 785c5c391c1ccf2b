"""The wire protocol of torch's TCPStore, as far as bytes go; client and server share it.

A connection begins with VALIDATE and a magic number. A request is one byte, then its arguments: numbers are 64 bits,
little-endian; keys and values are a length and bytes; lists are a count and their items. torch's clients put a slash
before each key. Answers have no header: the client knows what to expect.
"""

from __future__ import annotations

import enum
import struct
from typing import Final

#: what a client says first: VALIDATE and the magic number
MAGIC: Final = 0x3C85F7CE
HELLO: Final = struct.pack("<BI", 0, MAGIC)
#: before each key of a client; keys without it are torch's own
KEY_PREFIX: Final = b"/"

NUMBER: Final = struct.Struct("<q")
COUNT: Final = struct.Struct("<Q")
NONCE: Final = struct.Struct("<I")

#: answers to WAIT, BARRIER and CANCEL_WAIT, and to CHECK
STOP_WAITING: Final = b"\x00"
WAIT_CANCELED: Final = b"\x01"
READY: Final = b"\x00"
NOT_READY: Final = b"\x01"


class Request(enum.IntEnum):
    """The first byte of a request."""

    VALIDATE = 0
    SET = 1
    COMPARE_SET = 2
    GET = 3
    ADD = 4
    CHECK = 5
    WAIT = 6
    GETNUMKEYS = 7
    DELETE_KEY = 8
    APPEND = 9
    MULTI_GET = 10
    MULTI_SET = 11
    CANCEL_WAIT = 12
    PING = 13
    QUEUE_PUSH = 14
    QUEUE_POP = 15
    QUEUE_LEN = 16
    LIST_KEYS = 17
    BARRIER = 18


def sized(data: bytes) -> bytes:
    return COUNT.pack(len(data)) + data


def request(kind: Request, *arguments: bytes) -> bytes:
    return bytes([kind]) + b"".join(arguments)
