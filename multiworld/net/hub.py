"""The one thread of the package: control connections, heartbeats and deadlines of all worlds of the process.

It waits in one selector and does nothing that blocks. It never carries payloads, so it is idle while all is well.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import ClassVar

from multiworld.liveness.monitor import Monitor
from multiworld.net.descriptors import reserve
from multiworld.net.endpoint import Endpoint

logger = logging.getLogger(__name__)

TICK = 0.05
#: a tick that comes this much late is a stall of ours: GIL held, process stopped, machine swapping
STALL = 0.2

Ready = Callable[[int], None]


class Hub:
    """Shared by all ``MultiWorld`` objects of a process; its thread runs while there is one."""

    _instance: ClassVar[Hub | None] = None
    _guard: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    def acquire(cls) -> Hub:
        """The hub of this process, started if need be; give it back with ``release``."""
        with cls._guard:
            hub = cls._instance
            if hub is None or hub.pid != os.getpid():
                hub = cls._instance = Hub()
            reserve.fill()
            hub._users += 1
            return hub

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._users = 0
        self._selector = selectors.DefaultSelector()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector.register(self._wake, selectors.EVENT_READ, self._drain)
        self._calls: deque[Callable[[], None]] = deque()
        # Reentrant: the garbage collector may run somebody's call in the middle of ours.
        self._calls_guard = threading.RLock()
        self._stopped = False
        self._later: list[tuple[float, Callable[[], None]]] = []
        self._tickers: list[Callable[[float], None]] = []
        self._stall_watchers: list[Callable[[float], None]] = []
        self._closers: list[Callable[[], None]] = []
        self._stopping = False
        self._endpoints: dict[str, Endpoint] = {}
        self._endpoints_guard = threading.Lock()
        self.monitor = Monitor(self)
        self.thread = threading.Thread(target=self._run, name="mw-hub", daemon=True)
        self.thread.start()

    def release(self) -> None:
        """Give the hub back; the last one stops the thread and frees what it held."""
        with self._guard:
            self._users -= 1
            if self._users > 0:
                return
            if Hub._instance is self:
                Hub._instance = None
                reserve.empty()
        self.call(self._stop)
        if threading.current_thread() is not self.thread:
            self.thread.join(timeout=5)

    def endpoint(self, address: str) -> Endpoint:
        """Where peers reach us at ``address``, made if need be. Not from the hub's thread."""
        with self._endpoints_guard:
            if address not in self._endpoints:
                self._endpoints[address] = Endpoint(self, address)
            return self._endpoints[address]

    def call(self, function: Callable[[], None]) -> None:
        """Run ``function`` in the hub's thread, soon; in this one when the hub has stopped: what is to be freed is."""
        with self._calls_guard:
            if not self._stopped:
                self._calls.append(function)
                os.eventfd_write(self._wake, 1)
                return
        self._guarded(function)

    def call_later(self, delay: float, function: Callable[[], None]) -> None:
        """Run ``function`` in the hub's thread after ``delay`` seconds, give or take a tick."""
        self.call(lambda: self._later.append((time.monotonic() + delay, function)))

    def call_and_wait(self, function: Callable[[], None], timeout: float = 5.0) -> bool:
        """Run ``function`` in the hub's thread and wait until it is done; False if it was not in time."""
        if threading.current_thread() is self.thread:
            function()
            return True
        done = threading.Event()

        def work() -> None:
            try:
                function()
            finally:
                done.set()

        self.call(work)
        return done.wait(timeout)

    def watch(self, sock: socket.socket, events: int, ready: Ready) -> None:
        """Call ``ready`` with the events when ``sock`` has them. Only in the hub's thread, and while it runs."""
        if self._stopped:
            return
        try:
            self._selector.modify(sock, events, ready)
        except KeyError:
            self._selector.register(sock, events, ready)

    def unwatch(self, sock: socket.socket) -> None:
        """Forget ``sock``. In the hub's thread only."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(sock)

    def on_tick(self, ticker: Callable[[float], None]) -> None:
        """Call ``ticker`` with the monotonic time at every tick."""
        self.call(lambda: self._tickers.append(ticker))

    def off_tick(self, ticker: Callable[[float], None]) -> None:
        """Stop calling ``ticker``."""
        self.call(lambda: self._tickers.remove(ticker) if ticker in self._tickers else None)

    def on_stall(self, watcher: Callable[[float], None]) -> None:
        """Call ``watcher`` with the gap in seconds when this thread did not run in time; before any ticker judges."""
        self._stall_watchers.append(watcher)

    def on_close(self, closer: Callable[[], None]) -> None:
        """Call ``closer`` in the hub's thread when it stops."""
        self._closers.append(closer)

    def drop_in_child(self) -> None:
        """Close our copies in a forked child, without a word to the selector, which is the parent's too."""
        for endpoint in self._endpoints.values():
            endpoint.drop_in_child()
        self.monitor.drop_in_child()

    def _drain(self, _: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    def _run(self) -> None:
        last = next_tick = time.monotonic()
        while not self._stopping:
            now = time.monotonic()
            for key, events in self._selector.select(max(0.0, next_tick - now)):
                self._guarded(key.data, events)
            while self._calls:
                self._guarded(self._calls.popleft())
            now = time.monotonic()
            if now >= next_tick:
                if now - last > TICK + STALL:
                    for watcher in tuple(self._stall_watchers):
                        self._guarded(watcher, now - last)
                self._tick(now)
                last, next_tick = now, now + TICK
        with self._calls_guard:  # from here on nobody writes to the descriptor, whose number others get
            self._stopped = True
            self._selector.close()
            os.close(self._wake)
        while self._calls:
            self._guarded(self._calls.popleft())

    def _tick(self, now: float) -> None:
        due = [entry for entry in self._later if entry[0] <= now]
        if due:
            self._later = [entry for entry in self._later if entry[0] > now]
            for _, function in due:
                self._guarded(function)
        for ticker in tuple(self._tickers):
            self._guarded(ticker, now)

    def _guarded(self, function: Callable[..., None], *args: float) -> None:
        try:
            function(*args)
        except Exception:
            logger.exception("the hub goes on after an error in %r", function)

    def _stop(self) -> None:
        for closer in self._closers:
            self._guarded(closer)
        self._stopping = True
