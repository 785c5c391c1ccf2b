"""The control connections of a member, over all generations in which it goes on with them.

Nothing tells how much of an earlier generation is still under way on one of them, nor whether a line was cut. So a
member sends a mark before the first that it says in a generation, and the other one drops what comes before that.
"""

from __future__ import annotations

import contextlib
import select
import selectors
import socket
from collections.abc import Callable, Mapping
from typing import Any

from multiworld.transport.descriptors import reserve
from multiworld.transport.reactor import Reactor

#: of what is read at once
_PIECE = 1 << 16


class Lines:
    """Our ends of them, by rank; they do not block. The hub watches them as one, so that a generation begins without a
    call for each.

    Attributes:
        socks: the connections; what is written to one past ``send`` may be dropped.
    """

    def __init__(self) -> None:
        self.socks: dict[int, socket.socket] = {}
        self._ranks: dict[int, int] = {}  # by descriptor
        self._arrivals: Any = None  # the epoll instance of all of them
        self._mark = b""
        #: ranks that have yet to get our mark, and whose mark has yet to come
        self._unsaid: set[int] = set()
        self._unheard: set[int] = set()
        #: the last bytes before the mark of the other, which may have begun in them
        self._old: dict[int, bytes] = {}
        #: what has come and was not taken
        self._rest: dict[int, bytes] = {}
        #: once it is known, all is closed in its thread
        self._hub: Reactor | None = None
        self._watched = False
        self._ready: Callable[[], object] | None = None

    def put(self, rank: int, sock: socket.socket) -> None:
        """Take a new one in, which has no mark; raises ``OSError``."""
        if self._arrivals is None:
            self._arrivals = reserve.make(select.epoll)
        sock.setblocking(False)
        self._arrivals.register(sock, select.EPOLLIN)
        self.socks[rank], self._ranks[sock.fileno()] = sock, rank

    def pick(self, ranks: Mapping[int, int]) -> None:
        """Go on with the last ranks in ``ranks``, by new ones, and close the others."""
        for old in self.socks.keys() - ranks.values():
            self.drop(old)
        self.socks = {new: self.socks[old] for new, old in ranks.items()}
        self._ranks = {sock.fileno(): rank for rank, sock in self.socks.items()}

    def begin_at(self, mark: bytes) -> None:
        """Begin the generation with this mark, on both sides."""
        self._mark, self._unsaid, self._unheard = mark, set(self.socks), set(self.socks)
        self._old, self._rest = {}, {}

    def send(self, rank: int, data: bytes) -> None:
        """Send ``data``, as much as is taken at once, if that one is here; raises ``OSError``. For one thread at a
        time."""
        sock, mark = self.socks.get(rank), self._mark if rank in self._unsaid else b""
        if sock is not None and sock.send(mark + data) >= len(mark):
            self._unsaid.discard(rank)

    def ready(self) -> set[int]:
        """The ranks of which something of this generation has come, or that have ended."""
        arrived = () if self._arrivals is None else self._arrivals.poll(0)
        return {*self._rest, *filter(self._has_come, (self._ranks[descriptor] for descriptor, _ in arrived))}

    def _has_come(self, rank: int) -> bool:
        """Tell whether that is more than what is left of the last generation, which is dropped."""
        if rank not in self._unheard:
            return True
        with contextlib.suppress(OSError):  # ``recv`` tells that it has ended
            try:
                if data := self._fresh(rank):
                    self._rest[rank] = data
            except BlockingIOError:
                return False
        return True

    def recv(self, rank: int, most: int) -> bytes:
        """Read at most ``most`` bytes of this generation; none at the end of the connection.

        Raises:
            BlockingIOError: nothing has come.
            OSError: the connection is broken.
        """
        data = self._rest.pop(rank, b"") or self._fresh(rank)
        if len(data) > most:
            self._rest[rank] = data[most:]
        return data[:most]

    def _fresh(self, rank: int) -> bytes:
        while (data := self.socks[rank].recv(_PIECE)) and rank in self._unheard:
            before, found, data = (self._old.get(rank, b"") + data).partition(self._mark)
            self._old[rank] = before[1 - len(self._mark) :]
            if found:
                self._unheard.discard(rank)
                del self._old[rank]
            if data:
                break
        return data

    def watch(self, hub: Reactor, ready: Callable[[], object]) -> None:
        """Call ``ready`` in the hub's thread when something has come. From any thread."""
        self._hub = hub
        hub.call(lambda: self._watch(hub, ready))

    def _watch(self, hub: Reactor, ready: Callable[[], object]) -> None:
        if self._arrivals is None:  # all were closed before the hub came to this
            return
        self._ready = ready
        if not self._watched:
            self._watched = True
            hub.watch(self._arrivals.fileno(), selectors.EVENT_READ, self._look)
        if self._rest:
            ready()

    def rest(self) -> None:
        """Call nothing any more, until ``watch`` is called again."""
        self._ready = None

    def drop(self, rank: int) -> None:
        """Close one, if it is here. In the hub's thread, where that watches."""
        sock = self.socks.pop(rank, None)
        if sock is not None and sock.fileno() >= 0:  # a forked child has closed it
            del self._ranks[sock.fileno()]
            self._arrivals.unregister(sock)
            self._rest.pop(rank, None)
            sock.close()

    def close(self) -> None:
        """Close all. From any thread."""
        self.rest()
        if self._hub is None:
            self._close()
        else:
            self._hub.call(self._close)

    def _look(self, _: int) -> None:
        ready = self._ready  # another thread may let it rest
        if ready is not None:
            ready()
        else:
            self._unwatch()

    def _unwatch(self) -> None:
        if self._hub is not None and self._watched:
            self._watched = False
            self._hub.unwatch(self._arrivals.fileno())

    def _close(self) -> None:
        self._unwatch()
        for rank in tuple(self.socks):
            self.drop(rank)
        if self._arrivals is not None:
            self._arrivals.close()
            self._arrivals = None
