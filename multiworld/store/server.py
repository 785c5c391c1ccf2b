"""A hosted store: torch's TCPStore in the hub's thread, where no connection can hold another one up.

torch's own server reads with blocking calls, so that one byte from a stranger stops it. Here nothing blocks, each
connection has bounds, and what a stranger sends closes the stranger's connection only.
"""

from __future__ import annotations

import contextlib
import logging
import math
import selectors
import socket
import time
from typing import Final

from multiworld.store.server_data import Limits, Refused, StoreData
from multiworld.store.server_protocol import ServerProtocol
from multiworld.transport.descriptors import NO_RESOURCES, limit, system_message
from multiworld.transport.greeting import GreetingError
from multiworld.transport.reactor import Reactor
from multiworld.transport.sockets import accepted

logger = logging.getLogger(__name__)

#: most connections that have not said yet what a client says first, and how long each may take, in seconds
MAX_STRANGERS: Final = 64
STRANGER_SECONDS: Final = 2.0
#: connections accepted, and bytes read from one, before the hub looks at its other work
ACCEPTS_AT_ONCE: Final = 64
READ_BYTES: Final = 4096
LARGE_READ_BYTES: Final = 1 << 18
#: how long to stop accepting when no descriptor is free
BACK_OFF_SECONDS: Final = 0.2
#: a connection that said nothing for so long gives way when there are too many
IDLE_SECONDS: Final = 2.0
#: a log line about refused clients is repeated after so long at the earliest
LOG_SECONDS: Final = 60.0
MIN_CONNECTIONS: Final = 128


class StoreServer:
    """Serves one store on a listening socket, which it owns, until it is closed. Every client has to prove ``secret``;
    None accepts torch's own clients as well."""

    def __init__(
        self, hub: Reactor, listener: socket.socket, secret: bytes | None = None, limits: Limits | None = None
    ) -> None:
        self._hub = hub
        self._listener = listener
        self.secret = secret
        self.limits = limits or Limits()
        self.data = StoreData(self.limits)
        self._connections: dict[_Connection, None] = {}
        #: those that have not said yet what a client says first, oldest first
        self._strangers: dict[_Connection, None] = {}
        self._closed = False
        self._warned = False
        self._logged_at = -math.inf
        self._complaint: tuple[float, GreetingError | None] = -math.inf, None
        listener.setblocking(False)
        hub.call(self._listen)

    def close(self) -> None:
        """Stop serving; the port is free when this returns."""
        self._hub.call_and_wait(self._close)

    def dismiss(self, connection: _Connection) -> None:
        """Close a connection; the hub's thread only, as all that follows."""
        if connection in self._connections:
            del self._connections[connection]
            self._strangers.pop(connection, None)
            connection.close()

    def welcome(self, connection: _Connection) -> None:
        self._strangers.pop(connection, None)

    def note_refusal(self, refused: Refused) -> None:
        """Note that a connection was refused; log what may be a member's wrong setting, once in a while."""
        complaint, now = refused.complaint, time.monotonic()
        if complaint is None:
            logger.debug("the store closes a connection: %s", refused)
            return
        self._complaint = now, complaint
        if now - self._logged_at > LOG_SECONDS:
            self._logged_at = now
            port, text = self._listener.getsockname()[1], "likely cause: %s; what to do: %s (said once in %.0f s)"
            why = complaint.cause, complaint.remedy, LOG_SECONDS
            logger.warning(f"the store at port %d refused %s; {text}", port, refused, *why)

    def complaint(self, since: float) -> GreetingError | None:
        """Why a client that may be a member was last refused, if after ``since``, a monotonic time. From any thread."""
        at, error = self._complaint
        return error if at >= since else None

    def _listen(self) -> None:
        if not self._closed:
            self._hub.watch(self._listener, selectors.EVENT_READ, self._accept)

    def _close(self) -> None:
        self._closed = True
        self._hub.unwatch(self._listener)
        self._listener.close()
        for connection in tuple(self._connections):
            self.dismiss(connection)

    def _accept(self, _: int) -> None:
        for _turn in range(ACCEPTS_AT_ONCE):
            if not self._has_room():
                self._back_off("the limit for this store is reached")
                return
            try:
                sock = accepted(self._listener)
            except OSError as error:
                if error.errno in NO_RESOURCES:
                    self._back_off(system_message(error))
                return
            self._admit(sock)

    def _admit(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        with contextlib.suppress(OSError):  # gone already
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection = _Connection(self, self._hub, sock)
        self._connections[connection] = self._strangers[connection] = None
        connection.start()  # mostly its first words are here already
        if connection in self._strangers:
            self._hub.call_later(STRANGER_SECONDS, lambda: self._expire(connection))
            self._limit_strangers()

    def _limit_strangers(self) -> None:
        if len(self._strangers) <= MAX_STRANGERS:
            return
        oldest = next(iter(self._strangers))
        oldest.read(0)  # what it has said since is heard first
        if oldest in self._strangers:
            self.dismiss(oldest)

    def _expire(self, connection: _Connection) -> None:
        if connection in self._strangers:
            self.dismiss(connection)

    def _has_room(self) -> bool:
        """Half of the descriptors of the process may be ours; the connection that was silent for longest gives way."""
        if len(self._connections) < max(MIN_CONNECTIONS, limit() // 2):
            return True
        idle = [each for each in self._connections if each.idle_seconds() > IDLE_SECONDS]
        if idle:
            self.dismiss(max(idle, key=_Connection.idle_seconds))
        return bool(idle)

    def _back_off(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            logger.warning(
                "the store at port %d accepts no connection for now: %s", self._listener.getsockname()[1], why
            )
        self._hub.unwatch(self._listener)
        self._hub.call_later(BACK_OFF_SECONDS, self._listen)


class _Connection:
    """One client, or a stranger. In the hub's thread only."""

    def __init__(self, server: StoreServer, hub: Reactor, sock: socket.socket) -> None:
        self.sock = sock
        self._server = server
        self._hub = hub
        # Not at once: it is called in the middle of another connection's request, or of this one's.
        self._protocol = ServerProtocol(
            server.data, server.limits, server.secret, answered=lambda: hub.call(self._flush)
        )
        self._closed = False
        self._refused = False
        self._events = 0
        self._heard = time.monotonic()

    def start(self) -> None:
        self._watch()
        self.read(0)

    def idle_seconds(self) -> float:
        return time.monotonic() - self._heard

    def close(self) -> None:
        self._closed = True
        self._hub.unwatch(self.sock)
        self.sock.close()
        self._protocol.end()

    def read(self, _: int) -> None:
        try:
            data = self.sock.recv(LARGE_READ_BYTES if self._protocol.missing > READ_BYTES else READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._server.dismiss(self)
            return
        self._heard = time.monotonic()
        if not self._refused:
            self._serve(data)

    def _serve(self, data: bytes) -> None:
        try:
            self._protocol.feed(data)
        except Refused as refused:
            self._server.note_refusal(refused)
            self._refuse()
            return
        if self._protocol.valid:
            self._server.welcome(self)
        self._flush()

    def _refuse(self) -> None:
        """Hang up, after the answer that says why: unread data would make the kernel drop it."""
        last_words = not self._protocol.valid and bytes(self._protocol.out)
        if not last_words:
            self._server.dismiss(self)
            return
        self._refused = True
        self._protocol.end()
        with contextlib.suppress(OSError):
            self.sock.send(last_words)
            self.sock.shutdown(socket.SHUT_WR)
        self._protocol.out.clear()
        self._events = selectors.EVENT_READ
        self._hub.watch(self.sock, self._events, self._ready)

    def _ready(self, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            self._flush()
            if not self._closed and not self._refused:
                self._serve(b"")  # what had to wait until its answers were taken
        if events & selectors.EVENT_READ and not self._closed:
            self.read(events)

    def _flush(self) -> None:
        out = self._protocol.out
        while out and not self._closed:
            try:
                del out[: self.sock.send(out)]
            except BlockingIOError:  # noqa: PERF203 - a socket's way to say that it is full
                break
            except OSError:
                self._server.dismiss(self)
                return
        self._watch()

    def _watch(self) -> None:
        """Wait for what comes next; a client that does not read its answers is not read either."""
        if self._closed:
            return
        more = self._protocol.out or not self._protocol.missing
        read = 0 if more else selectors.EVENT_READ
        events = read | (selectors.EVENT_WRITE if more else 0)
        if events != self._events:
            self._events = events
            self._hub.watch(self.sock, events, self._ready)
