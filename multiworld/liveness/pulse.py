"""A sign of life that needs no GIL: the native thread of a small TCP store in each process answers pings.

A Python thread cannot answer while another one holds the GIL, for example during a long model load, and such a peer
must not be taken for dead. torch's own store server is a native thread that answers as long as the process runs: not
when it is stopped, frozen, gone or cut off. Peers ask it over connections of their own with two messages of the
store's protocol, which are tried out on ourselves before anybody relies on them. Should a torch not understand them,
a Python thread answers instead.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import struct
import threading
from datetime import timedelta
from typing import Any, Final

import torch.distributed as dist

from multiworld.process import immortal

logger = logging.getLogger(__name__)

#: VALIDATE with its magic number, once per connection (torch: csrc/distributed/c10d/TCPStoreBackend.hpp)
HELLO: Final = struct.pack("<BI", 0, 0x3C85F7CE)
#: GETNUMKEYS, which is answered with an int64
PING: Final = b"\x07"
PONG_BYTES: Final = 8


class PulseServer:
    """Answers pings at ``address``:``port`` as long as this process runs.

    Attributes:
        native: whether a native thread answers; if not, a held GIL looks like silence.
    """

    def __init__(self, address: str) -> None:
        family, _, _, _, place = socket.getaddrinfo(address, 0, type=socket.SOCK_STREAM)[0]
        listener = socket.create_server(place, family=family, backlog=1024)
        self.address = address
        self.port: int = listener.getsockname()[1]
        self._fallback: socket.socket | None = None
        self._store: Any = _native_server(address, self.port, listener)
        self.native = self._store is not None
        if not self.native:
            logger.warning("this torch's store does not answer pings natively: a held GIL will look like silence")
            self._serve_in_python(address)

    def close(self) -> None:
        """Stop answering."""
        self._store = None
        if self._fallback is not None:
            with contextlib.suppress(OSError):
                self._fallback.shutdown(socket.SHUT_RDWR)
            self._fallback.close()

    def drop_in_child(self) -> None:
        """Leave the store alone in a forked child, where its thread does not exist."""
        immortal(self._store)

    def _serve_in_python(self, address: str) -> None:
        self._fallback = socket.create_server((address, 0), backlog=1024)
        self.port = self._fallback.getsockname()[1]
        threading.Thread(target=_accept, args=(self._fallback,), name="mw-pulse", daemon=True).start()


def _native_server(address: str, port: int, listener: socket.socket) -> Any:
    """The store, if it comes up and answers; it owns the listening socket from then on."""
    try:
        store = dist.TCPStore(
            address, port, None, True, timedelta(seconds=5), False,
            master_listen_fd=listener.detach(), use_libuv=False,
        )  # fmt: skip
        return store if answers(address, port) else None
    except Exception:
        logger.debug("no native pulse", exc_info=True)
        return None


def answers(address: str, port: int, timeout: float = 2.0) -> bool:
    """Whether something at ``address``:``port`` answers a ping as a TCP store does, within ``timeout`` seconds."""
    with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=timeout) as probe:
        probe.sendall(HELLO + PING)
        return len(probe.recv(PONG_BYTES, socket.MSG_WAITALL)) == PONG_BYTES
    return False


def _accept(listener: socket.socket) -> None:
    while True:
        try:
            peer, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=_answer, args=(peer,), name="mw-pulse-peer", daemon=True).start()


def _answer(peer: socket.socket) -> None:
    with contextlib.suppress(OSError), peer:
        peer.recv(len(HELLO), socket.MSG_WAITALL)
        while pings := peer.recv(64):
            peer.sendall(bytes(PONG_BYTES * len(pings)))
