"""The kernel's view of a TCP connection: when something last came, and whether anything is still unanswered."""

from __future__ import annotations

import socket
import struct
from dataclasses import dataclass
from typing import Final

# struct tcp_info of <linux/tcp.h>: tcpi_snd_mss at 16, tcpi_unacked at 24, tcpi_last_data_recv and tcpi_last_ack_recv
# at 52, in ms. The kernel only ever appends to it.
_BYTES: Final = 60
_SEGMENT: Final = struct.Struct("@16xI")
_UNACKED: Final = struct.Struct("@24xI")
_AGES: Final = struct.Struct("@52xII")


@dataclass(frozen=True, slots=True)
class TcpInfo:
    """Segments that the peer's kernel has not acknowledged, and seconds since data and an acknowledgement last came."""

    unanswered: int
    data_age: float
    ack_age: float


def tcp_info(sock: socket.socket) -> TcpInfo | None:
    """Ask the kernel about a connection; None if it does not say."""
    try:
        raw = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _BYTES)
    except OSError:
        return None
    # An imitation of Linux may leave zeros in a part of it; no real connection has segments of 0.
    if len(raw) < _BYTES or _SEGMENT.unpack_from(raw)[0] == 0:
        return None
    data_age, ack_age = _AGES.unpack(raw)
    return TcpInfo(_UNACKED.unpack_from(raw)[0], data_age / 1000, ack_age / 1000)
