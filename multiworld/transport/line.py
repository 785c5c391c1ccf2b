"""A control connection, over all generations in which its two members go on with it.

Nothing tells how much of an earlier generation is still under way on it, nor whether a line was cut. So a member sends
a mark before the first that it says in a generation, and the other one drops what comes before that.
"""

from __future__ import annotations

import selectors
import socket
from collections.abc import Callable

from multiworld.transport.reactor import Reactor

#: of what is read at once
_PIECE = 1 << 16


class Line:
    """Our end of it; it does not block. The hub goes on watching it from one generation to the next.

    Attributes:
        sock: the connection; what is written to it past ``send`` may be dropped.
    """

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self.sock = sock
        self._ours, self._theirs = b"", b""
        #: the last bytes before the mark of the other, which may have begun in them
        self._old = b""
        #: what has come and was not taken
        self._rest = b""
        self._hub: Reactor | None = None
        self._ready: Callable[[], object] | None = None

    def begin_at(self, mark: bytes) -> None:
        """Begin the generation with this mark, on both sides."""
        self._ours, self._theirs, self._old, self._rest = mark, mark, b"", b""

    def send(self, data: bytes) -> None:
        """Send ``data``, as much as is taken at once; raises ``OSError``. For one thread at a time."""
        if self.sock.send(self._ours + data) >= len(self._ours):
            self._ours = b""

    def recv(self, most: int) -> bytes:
        """Read at most ``most`` bytes of this generation; none at the end of the connection.

        Raises:
            BlockingIOError: nothing has come.
            OSError: the connection is broken.
        """
        data = self._rest or self._fresh()
        self._rest = data[most:]
        return data[:most]

    def _fresh(self) -> bytes:
        while (data := self.sock.recv(_PIECE)) and self._theirs:
            before, found, data = (self._old + data).partition(self._theirs)
            self._old = before[1 - len(self._theirs) :]
            if found:
                self._theirs = self._old = b""
            if data:
                break
        return data

    def watch(self, hub: Reactor, ready: Callable[[], object]) -> None:
        """Call ``ready`` when something has come. In the hub's thread."""
        self._ready = ready
        if self._hub is None and self.sock.fileno() >= 0:  # else it was closed before the hub came to this
            self._hub = hub
            hub.watch(self.sock, selectors.EVENT_READ, self._look)
        if self._rest:
            ready()

    def rest(self) -> None:
        """Call nothing any more, until ``watch`` is called again."""
        self._ready = None

    def close(self) -> None:
        """Close it. From any thread."""
        self.rest()
        hub = self._hub  # the hub's thread may let go of it meanwhile
        if hub is None:
            self.sock.close()
        else:
            hub.call(self._close)

    def _look(self, _: int) -> None:
        if self._ready is not None:
            self._ready()
        else:
            self._unwatch()

    def _unwatch(self) -> None:
        if self._hub is not None:
            self._hub.unwatch(self.sock)
            self._hub = None

    def _close(self) -> None:
        self._unwatch()
        self.sock.close()
