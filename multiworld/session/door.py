"""The door of a world: newcomers wait there, each with a connection to rank 0, which tells the others who waits."""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
from collections.abc import Callable, Iterable
from typing import Final

import torch

from multiworld.rendezvous.ledger import Claim
from multiworld.transport.reactor import Reactor

MAX_LINE: Final = 1 << 14
#: newcomers that may wait at once; more are sent away, and come again
MAX_NEWCOMERS: Final = 1024
#: seconds that a connection may take to say who waits
INTRODUCTION_SECONDS: Final = 2.0


class Door:
    """Those who wait. All but ``waiting`` and ``guests`` are for the hub's thread.

    Args:
        backend: of the world.
        tell: tells the other members who waits.
    """

    def __init__(self, hub: Reactor, backend: str, tell: Callable[[tuple[str, ...]], None]) -> None:
        self._hub, self._backend, self._tell = hub, backend, tell
        self._said: dict[socket.socket, bytes] = {}
        self._claims: dict[socket.socket, Claim] = {}
        self._closed = False
        #: identities, in the order in which they came
        self.waiting: tuple[str, ...] = ()

    @property
    def guests(self) -> tuple[Claim, ...]:
        """Their claims, on rank 0."""
        return tuple(self._claims.values())

    def knock(self, sock: socket.socket) -> None:
        """Take over the connection of a newcomer."""
        if self._closed or len(self._said) >= MAX_NEWCOMERS:
            sock.close()
            return
        sock.setblocking(False)
        self._said[sock] = b""
        self._hub.watch(sock, selectors.EVENT_READ, lambda _: self._read(sock))
        self._hub.call_later(INTRODUCTION_SECONDS, lambda: self._expire(sock))

    def told(self, waiting: Iterable[object]) -> None:
        """Take in what rank 0 says."""
        self.waiting = tuple(map(str, waiting))

    def close(self) -> None:
        """Let those who wait look again: they were invited, or the generation is over. From any thread."""
        self._hub.call(self._close)

    def _close(self) -> None:
        self._closed = True
        for sock in tuple(self._said):
            self._drop(sock)

    def _expire(self, sock: socket.socket) -> None:
        if sock in self._said and sock not in self._claims:
            self._drop(sock)

    def _read(self, sock: socket.socket) -> None:
        try:
            data = sock.recv(MAX_LINE)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        said = self._said[sock] = self._said[sock] + data
        if not data or len(said) > MAX_LINE or sock in self._claims:
            self._drop(sock)
        elif said.endswith(b"\n"):
            self._introduce(sock, said)

    def _introduce(self, sock: socket.socket, line: bytes) -> None:
        try:
            told = json.loads(line)
            claim, theirs = Claim.unpacked(told["claim"]), str(told["torch"])
        except (ValueError, TypeError, KeyError, RecursionError):
            self._drop(sock)
            return
        if theirs != torch.__version__:
            self._refuse(sock, f"the members have torch {torch.__version__}, this process {theirs}", "torch")
        elif claim.backend != self._backend:
            self._refuse(sock, f"the members joined with backend {self._backend}", "backend=")
        else:
            self._claims[sock] = claim
            self._changed()

    def _refuse(self, sock: socket.socket, what: str, same: str) -> None:
        said = {"what": what, "cause": f"{same} differs", "remedy": f"start it with the {same} of the members"}
        with contextlib.suppress(OSError):
            sock.send(json.dumps(said).encode())
        self._drop(sock)

    def _drop(self, sock: socket.socket) -> None:
        self._hub.unwatch(sock)
        sock.close()
        del self._said[sock]
        if self._claims.pop(sock, None) is not None:
            self._changed()

    def _changed(self) -> None:
        self.waiting = tuple(claim.identity for claim in self._claims.values())
        if not self._closed:
            self._tell(self.waiting)
