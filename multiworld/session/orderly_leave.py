"""Leaving in good order: what was sent arrives before the connections close."""

from __future__ import annotations

import contextlib
import fcntl
import socket
import struct
import termios
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any

from multiworld.transport.lane import Lane

#: how long a leaving member waits for what it sent to be taken
LINGER_SECONDS = 2.0


def write_out(
    lanes: Iterable[Lane], lock: AbstractContextManager[Any], under_way: Callable[[], bool], seconds: float
) -> None:
    """Write what is left, say that nothing follows, and wait for at most ``seconds`` until the peers have taken it.
    Work that was enqueued on the device and is ``under_way`` ends meanwhile.
    """
    until = time.monotonic() + seconds
    pending = list(lanes)
    while (pending or under_way()) and time.monotonic() < until:
        pending = [lane for lane in pending if not _finished(lane, lock)]
        if pending or under_way():
            time.sleep(0.001)


def _finished(lane: Lane, lock: AbstractContextManager[Any]) -> bool:
    with lock:
        if lane.backlog and not lane.ended:
            lane.flush()
        if lane.backlog and not lane.ended:
            return False
        lane.ended = True  # nothing else reads from it any more
        with contextlib.suppress(OSError):
            lane.sock.shutdown(socket.SHUT_WR)
        return _taken(lane.sock)


def _taken(sock: socket.socket) -> bool:
    """Tell whether the peer's machine has all that was written.

    Data of the peer is read and dropped: to close a socket with something unread resets the connection, and what is
    on its way is lost.
    """
    try:
        while sock.recv(1 << 16):
            pass
    except BlockingIOError:
        unacknowledged = struct.unpack("i", fcntl.ioctl(sock, termios.TIOCOUTQ, b"\0" * 4))[0]
        return bool(unacknowledged <= 1)  # the end itself counts as one
    except OSError:
        pass
    return True  # the peer has ended the connection
