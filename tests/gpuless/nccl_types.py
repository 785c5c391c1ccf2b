"""Types of NCCL's C interface."""

from __future__ import annotations

import base64
import ctypes
from ctypes import c_char, c_int, c_size_t


class UniqueId(ctypes.Structure):
    _fields_ = (("bytes", c_char * 128),)

    def text(self) -> str:
        return base64.b64encode(bytes(self)).decode()

    @classmethod
    def of(cls, text: str) -> UniqueId:
        return cls.from_buffer_copy(base64.b64decode(text))


class Config(ctypes.Structure):
    """`ncclConfig_t`; only the head is looked at."""

    _fields_ = (
        ("size", c_size_t),
        ("magic", ctypes.c_uint),
        ("version", ctypes.c_uint),
        ("blocking", c_int),
        ("rest", c_int * 30),
    )
