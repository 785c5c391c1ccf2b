"""Where peers reach this process: listeners per local address, shared by all worlds.

One listens to TCP, one to the processes of this host and network namespace; its name cannot be guessed. Any process may
connect. Connections that have not introduced themselves are bounded in number, time and bytes, and
cost no more than what they send; see ``docs/threat-model.md``.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import selectors
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, TypeAlias

from multiworld.config import NetworkSettings, printed
from multiworld.transport.descriptors import NO_RESOURCES, reserve
from multiworld.transport.greeting import MAX_GREETING_BYTES, GreetingError, Hello, Reason, Role, refusal
from multiworld.transport.handshake import Acceptor
from multiworld.transport.network_settings import listen
from multiworld.transport.reactor import Reactor
from multiworld.transport.sockets import accepted, listening_here

logger = logging.getLogger(__name__)

#: connections that have not introduced themselves; one more drops the oldest, so that a flood does not keep members out
MAX_VISITORS: Final = 64
#: how long one of them may take
VISITOR_SECONDS: Final = 2.0
#: with so many of them, new connections are accepted in batches with pauses between them: the worlds of this process
#: notice a batch now and then less than they would notice a thread that is never idle
CROWD: Final = 8
BATCH: Final = 128
#: between batches; also after an accept that failed: the listener stays ready, and would keep the hub busy
ACCEPT_PAUSE: Final = 0.05
#: how often one kind of warning about strangers is logged at most
WARNING_SECONDS: Final = 10.0

#: takes a connection over, or closes it
Taker: TypeAlias = Callable[[socket.socket], None]
#: answers a hello for a world and generation: what takes the connection over, or why it is refused; raises
#: ``GreetingError`` for what its member is to be told as well
Answerer: TypeAlias = "Callable[[Hello], Taker | str]"
#: world, generation, incarnation
Member: TypeAlias = tuple[str, int, str]


@dataclass(slots=True, eq=False)
class _Visitor:
    """A connection that has not introduced itself yet. It is closed at ``until``, a monotonic time."""

    sock: socket.socket
    acceptor: Acceptor
    until: float
    watched: bool = False


class Endpoint:
    """The listeners at one address. Connections greet, see ``greeting``, and are handed to the member they want.

    Args:
        serve_pulse: takes over heartbeat connections, once they have introduced themselves.

    Raises:
        OSError: the address is not of this machine.
        MultiWorldError: see ``listen``.
    """

    def __init__(
        self, hub: Reactor, address: str, network: NetworkSettings, serve_pulse: Callable[[socket.socket], None]
    ) -> None:
        self.hub = hub
        self._network = network
        self._listeners = [listen(address, 0, network)]
        self.address = address
        self.port: int = self._listeners[0].getsockname()[1]
        #: names the listener for processes of this host; empty if there is none
        self.local = self._listen_here() if network.same_host else ""
        self.serve_pulse = serve_pulse
        self._answerers: dict[Member, Answerer] = {}
        self._complaints: dict[Member, GreetingError] = {}
        self._visitors: dict[socket.socket, _Visitor] = {}  # oldest first
        self._expiring = False
        self._exhausted = False  # of descriptors or memory, at the last accept
        self._closed = False
        self._quiet_until: dict[Reason, float] = {}
        hub.on_close(self.close)
        for listener in self._listeners:
            listener.setblocking(False)
            hub.call(partial(self._watch, listener))

    def expect(self, world: str, generation: int, incarnation: str, answerer: Answerer) -> None:
        """Let ``answerer`` answer visitors of this world, generation and incarnation, in the hub's thread.

        A process may have several memberships of one world, in several ``MultiWorld``.
        """
        self._answerers[world, generation, incarnation] = answerer

    def forget(self, world: str, generation: int, incarnation: str) -> None:
        self._answerers.pop((world, generation, incarnation), None)
        self._complaints.pop((world, generation, incarnation), None)

    def complaint(self, world: str, generation: int, incarnation: str) -> GreetingError | None:
        """Why a peer that wanted this member was refused: another secret, protocol or size."""
        return self._complaints.get((world, generation, incarnation))

    def close(self) -> None:
        """Stop listening. In the hub's thread."""
        self._closed = True
        for listener in self._listeners:
            self.hub.unwatch(listener)
            listener.close()
        for visitor in tuple(self._visitors.values()):
            self._dismiss(visitor)

    # connections that have not introduced themselves

    def _listen_here(self) -> str:
        """Listen to processes of this host; a system that does not let us costs them speed only."""
        name = secrets.token_hex(16)
        try:
            self._listeners.append(listening_here(name))
        except OSError as error:
            logger.info("processes of this host are reached by TCP only: %s", error)
            return ""
        return name

    def _watch(self, listener: socket.socket) -> None:
        if not self._closed:
            self.hub.watch(listener, selectors.EVENT_READ, lambda _: self._accept(listener, 1))

    def _accept(self, listener: socket.socket, most: int) -> None:
        """Accept up to ``most`` connections; then a pause where there is a crowd, or nothing to accept with."""
        if self._closed:
            return
        accepted = 0
        while accepted < most and self._accept_one(listener):
            accepted += 1
        if self._exhausted or (accepted and len(self._visitors) >= CROWD):
            self._exhausted = False
            self.hub.unwatch(listener)
            self.hub.call_later(ACCEPT_PAUSE, lambda: self._accept(listener, BATCH))
        elif most > 1:  # after a pause
            self._watch(listener)

    def _accept_one(self, listener: socket.socket) -> bool:
        """Accept a connection, and hear what it has said already: then what comes after it cannot push it out."""
        try:
            sock = accepted(listener)
        except OSError as error:
            self._exhausted = error.errno in NO_RESOURCES and not reserve.refuse(listener)
            return False
        sock.setblocking(False)
        if len(self._visitors) >= MAX_VISITORS:
            self._dismiss(next(iter(self._visitors.values())))
        visitor = _Visitor(sock, Acceptor(self._network.secret), time.monotonic() + VISITOR_SECONDS)
        self._visitors[sock] = visitor
        self._listen_to(visitor)
        if sock in self._visitors:
            visitor.watched = True
            self.hub.watch(sock, selectors.EVENT_READ, lambda _: self._listen_to(visitor))
            if not self._expiring:
                self._expiring = True
                self.hub.call_later(VISITOR_SECONDS, self._expire)
        return True

    def _expire(self) -> None:
        """Drop visitors that took too long; one timer serves all of them."""
        now = time.monotonic()
        for visitor in tuple(self._visitors.values()):
            if visitor.until > now:
                self.hub.call_later(visitor.until - now, self._expire)
                return
            self._dismiss(visitor)
        self._expiring = False

    def _release(self, visitor: _Visitor) -> socket.socket:
        """The visitor's connection, which is no longer ours to look after."""
        self._visitors.pop(visitor.sock, None)
        if visitor.watched:
            self.hub.unwatch(visitor.sock)
        return visitor.sock

    def _dismiss(self, visitor: _Visitor, last_words: bytes = b"") -> None:
        sock = self._release(visitor)
        if last_words:
            _sent(sock, last_words)
        sock.close()

    def _listen_to(self, visitor: _Visitor) -> None:
        try:
            data = visitor.sock.recv(MAX_GREETING_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._dismiss(visitor)
            return
        try:
            turn = visitor.acceptor.take(data)
            if turn.hello is not None:
                self._introduce(visitor, turn.hello)
            elif turn.send and not _sent(visitor.sock, turn.send):
                self._dismiss(visitor)
        except GreetingError as error:
            self._dismiss(visitor, self._answer_to(error, visitor))

    def _introduce(self, visitor: _Visitor, hello: Hello) -> None:
        answerer = self._answerers.get(_member(hello))
        if visitor.sock.family == socket.AF_UNIX and hello.role is not Role.LANE:
            taker: Taker | str = f"a connection for {hello.role.value} comes by TCP"
        else:
            taker = _not_here(hello) if answerer is None else answerer(hello)
        if isinstance(taker, str):
            self._dismiss(visitor, refusal(Reason.REFUSED, taker))
        elif _sent(visitor.sock, visitor.acceptor.accept()):
            taker(self._release(visitor))
        else:
            self._dismiss(visitor)

    def _answer_to(self, error: GreetingError, visitor: _Visitor) -> bytes:
        """The answer to a failed greeting.

        A peer that wants a member that is not here learns only that: a claimant may be dead, and we may have its port.
        This reveals no members, because an incarnation cannot be guessed.
        """
        hello = error.hello
        if hello is None or not error.lasting:
            return error.answer
        if _member(hello) not in self._answerers:
            return refusal(Reason.REFUSED, _not_here(hello))
        self._complaints[_member(hello)] = error
        self._warn(error, hello, visitor.sock)
        return error.answer

    def _warn(self, error: GreetingError, hello: Hello, sock: socket.socket) -> None:
        now = time.monotonic()
        if now < self._quiet_until.get(error.reason, 0.0):
            return
        self._quiet_until[error.reason] = now + WARNING_SECONDS
        caller = f"{_peer(sock)} that says it is rank {hello.sender} of world {hello.world[:80]!r}"
        why = f"it {error.what}; likely cause: {error.cause}; what to do: {error.remedy}"
        logger.warning("a connection from %s was refused: %s (said once in %.0f s)", caller, why, WARNING_SECONDS)


def _member(hello: Hello) -> Member:
    return hello.world, hello.generation, hello.incarnation


def _not_here(hello: Hello) -> str:
    return f"this process is not that member of world {hello.world[:80]!r} in generation {hello.generation}"


def _sent(sock: socket.socket, line: bytes) -> bool:
    """Send ``line``; whether all of it went out. The rest of a partial one is dropped."""
    with contextlib.suppress(OSError):
        return sock.send(line, socket.MSG_NOSIGNAL) == len(line)
    return False


def _peer(sock: socket.socket) -> str:
    with contextlib.suppress(OSError):
        if sock.family != socket.AF_UNIX:
            return printed(*sock.getpeername()[:2])
        process, user, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return f"process {process} of user {user} on this host"
    return "an unknown address"
