"""A sign of life that needs no GIL: a native thread of each process answers pings.

A Python thread cannot answer while another one holds the GIL, for example during a long model load. Such a peer must
not be taken for dead. So compiled code (``engine/bind/heartbeats.h``) answers: as long as the process runs, and not
when it is stopped, frozen, gone or cut off. It serves only connections that were introduced to the endpoint as those of
a peer, so a stranger does not reach it. A ping is one byte, and so is its answer.
"""

from __future__ import annotations

import contextlib
import os
import select
import selectors
import socket
import struct
import threading
from pathlib import Path
from typing import Final

from multiworld.engine.library import module
from multiworld.transport.reactor import Reactor

PING: Final = b"p"
PONG: Final = b"P"
#: name of the thread that answers, as the kernel knows it: a neighbour looks for it in /proc
THREAD_NAME: Final = "mw-pulse"
#: the most pings that are answered in one go
MAX_AT_ONCE: Final = 64
_STOP_SECONDS = 1.0
_REPORT: Final = struct.Struct("@i")


class Responder:
    """Answers the pings of peers. Its methods are for the hub's thread."""

    def __init__(self, hub: Reactor) -> None:
        self._hub = hub
        self._epoll = select.epoll()
        self._stop = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._ended, self._report = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        self._socks: dict[int, socket.socket] = {}
        self._closed = False
        self._epoll.register(self._stop, select.EPOLLIN)
        hub.call(lambda: hub.watch(self._ended, selectors.EVENT_READ, self._forget_ended))
        self._thread = threading.Thread(target=self._run, name=THREAD_NAME, daemon=True)
        self._thread.start()

    @property
    def connections(self) -> int:
        return len(self._socks)

    def adopt(self, sock: socket.socket) -> None:
        """Answer the pings that come on ``sock`` from now on, and close it when it ends."""
        if self._closed:
            sock.close()
            return
        sock.setblocking(False)
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._epoll.register(sock.fileno(), select.EPOLLIN)
        except OSError:  # the user's limit of watches: the peer tries again
            sock.close()
            return
        self._socks[sock.fileno()] = sock

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        os.eventfd_write(self._stop, 1)
        self._thread.join(_STOP_SECONDS)
        self._hub.unwatch(self._ended)
        if not self._thread.is_alive():  # else it may still use them
            self._close_all()

    def drop_in_child(self) -> None:
        """Close our copies in a forked child, where the thread does not exist; once, however many owners say so."""
        if not self._closed:
            self._closed = True
            self._close_all()

    def _close_all(self) -> None:
        for sock in self._socks.values():
            sock.close()
        self._socks.clear()
        self._epoll.close()
        for fd in (self._stop, self._ended, self._report):
            os.close(fd)

    def _run(self) -> None:
        # Python names threads for the kernel from 3.14 on.
        with contextlib.suppress(OSError):
            Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(THREAD_NAME)
        module().answer_heartbeats(self._epoll.fileno(), self._stop, self._report)

    def _forget_ended(self, _: int) -> None:
        with contextlib.suppress(BlockingIOError):
            for (fd,) in _REPORT.iter_unpack(os.read(self._ended, 4096)):
                self._socks.pop(fd).close()


def first_ping(sock: socket.socket) -> None:
    """Ping once on a new connection, and wait for the answer within the socket's timeout. Once it has come, the native
    thread of the peer serves the connection. Raises ``OSError`` if none comes.
    """
    sock.sendall(PING)
    if sock.recv(1) != PONG:
        raise ConnectionResetError("its responder does not answer")
