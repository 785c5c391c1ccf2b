"""Whether a torch store is at an address: asked with two messages of its own protocol."""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import Final

#: VALIDATE with its magic number, once per connection (torch: csrc/distributed/c10d/TCPStoreBackend.hpp)
_HELLO: Final = struct.pack("<BI", 0, 0x3C85F7CE)
#: GETNUMKEYS, which is answered with an int64
_COUNT: Final = b"\x07"
_COUNT_BYTES: Final = 8


def answers(address: str, port: int, timeout: float = 2.0) -> bool:
    """Whether something at ``address``:``port`` answers as a TCP store does, within ``timeout`` seconds."""
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=timeout) as probe:
        probe.sendall(_HELLO + _COUNT)
        return len(probe.recv(_COUNT_BYTES, socket.MSG_WAITALL)) == _COUNT_BYTES
    return False
