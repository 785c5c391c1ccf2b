"""Where peers reach this process: one listener per local address, shared by all worlds."""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiworld.net.hub import Hub

MAX_HELLO_BYTES = 4096
#: answers a hello for a world and generation: the reply, and who takes the socket over after it (None: it is closed)
Taker = Callable[[socket.socket], None]
Answerer = Callable[[dict[str, Any]], tuple[dict[str, Any], Taker | None]]


@dataclass(slots=True)
class _Visitor:
    """A connection that has not said yet what it wants."""

    sock: socket.socket
    said: bytes = b""


class Endpoint:
    """The listener at one address. Connections say hello in one line of JSON and are answered with one."""

    def __init__(self, hub: Hub, address: str) -> None:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self._hub = hub
        self._listener = socket.create_server((address, 0), family=family, backlog=1024)
        self._listener.setblocking(False)
        self.address = address
        self.port: int = self._listener.getsockname()[1]
        #: takes over heartbeat connections, once they have introduced themselves
        self.pulse = hub.responder
        self._answerers: dict[tuple[str, int, str], Answerer] = {}
        hub.on_close(self.close)
        hub.call(lambda: hub.watch(self._listener, selectors.EVENT_READ, self._accept))

    def expect(self, world: str, generation: int, incarnation: str, answerer: Answerer) -> None:
        """Let ``answerer`` answer visitors of this world, generation and incarnation, in the hub's thread.

        A process may have several memberships of one world, in several ``MultiWorld``.
        """
        self._answerers[world, generation, incarnation] = answerer

    def forget(self, world: str, generation: int, incarnation: str) -> None:
        """Nobody answers for it any more."""
        self._answerers.pop((world, generation, incarnation), None)

    def close(self) -> None:
        """Stop listening."""
        self._hub.unwatch(self._listener)
        self._listener.close()

    def drop_in_child(self) -> None:
        """Close our copy of the listener in a forked child."""
        self._listener.close()

    def _accept(self, _: int) -> None:
        with contextlib.suppress(OSError):
            sock, _address = self._listener.accept()
            sock.setblocking(False)
            visitor = _Visitor(sock)
            self._hub.watch(sock, selectors.EVENT_READ, lambda _: self._listen_to(visitor))
            self._hub.call_later(10.0, lambda: self._dismiss(visitor))

    def _dismiss(self, visitor: _Visitor) -> None:
        if visitor.said != b"\n":  # said nothing whole in time
            self._hub.unwatch(visitor.sock)
            visitor.sock.close()

    def _listen_to(self, visitor: _Visitor) -> None:
        try:
            data = visitor.sock.recv(MAX_HELLO_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        visitor.said += data
        if data and b"\n" not in visitor.said and len(visitor.said) < MAX_HELLO_BYTES:
            return
        self._hub.unwatch(visitor.sock)
        said, visitor.said = visitor.said, b"\n"
        if data:
            self._answer(said, visitor.sock)
        else:
            visitor.sock.close()

    def _answer(self, said: bytes, sock: socket.socket) -> None:
        try:
            hello = json.loads(said)
            answerer = self._answerers.get((hello["world"], hello["generation"], hello["incarnation"]))
        except (ValueError, KeyError, TypeError):
            sock.close()
            return
        taker: Taker | None = None
        if answerer is None:
            why = f"that member of world {hello['world']!r} is not in generation {hello['generation']} here"
            reply: dict[str, Any] = {"ok": False, "why": why}
        else:
            reply, taker = answerer(hello)
        with contextlib.suppress(OSError):
            sock.send(json.dumps(reply).encode() + b"\n")
        if taker is None:
            sock.close()
        else:
            taker(sock)
