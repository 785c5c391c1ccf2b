"""The one thread of the package: control connections, heartbeats and deadlines of all worlds of the process.

It waits in one selector and does nothing that blocks. It never carries payloads, and it sleeps until the next thing is
due: a ping, the judgement of a silence, a deadline, a later call. An alarm that it is late for shows a stall of ours.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import math
import os
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable

logger = logging.getLogger(__name__)

#: an alarm that comes this much late shows a stall of ours: GIL held, process stopped, machine swapping
STALL = 0.2
#: the selector takes no longer times; in seconds
LONGEST_SLEEP = 3600.0

Ready = Callable[[int], None]
Alarm = Callable[[float], None]
Clock = Callable[[], float]


class Reactor:
    """A thread with a selector, calls from other threads, and alarms; ``start`` starts it.

    Args:
        clock: monotonic seconds; what is served here goes by the same one.
        selector: what it waits in; a new one by default.
    """

    def __init__(self, clock: Clock = time.monotonic, selector: selectors.BaseSelector | None = None) -> None:
        self.pid = os.getpid()
        self.clock = clock
        self._selector = selector or selectors.DefaultSelector()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._selector.register(self._wake, selectors.EVENT_READ, self._drain)
        self._calls: deque[Callable[[], None]] = deque()
        # Reentrant: the garbage collector may run somebody's call in the middle of ours.
        self._calls_guard = threading.RLock()
        self._stopped = False
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._alarms: dict[Alarm, float] = {}
        self._stall_watchers: list[Callable[[float], None]] = []
        self._closers: list[Callable[[], None]] = []
        self._stopping = False
        self._looked = clock()  # when it last looked for a stall of its own
        self.thread = threading.Thread(target=self.run, name="mw-hub", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def stop(self) -> None:
        """Close what it serves and stop the thread; waits for that, except in the thread itself."""
        self.call(self._stop)
        if self.thread.is_alive() and threading.current_thread() is not self.thread:
            self.thread.join(timeout=5)

    def call(self, function: Callable[[], None]) -> None:
        """Run ``function`` in the hub's thread, soon; in this one when the hub has stopped: what is to be freed is."""
        with self._calls_guard:
            if not self._stopped:
                first = not self._calls
                self._calls.append(function)
                if first:  # else the hub has been woken for those before, or is at work on them
                    os.eventfd_write(self._wake, 1)
                return
        self._guarded(function)

    def call_later(self, delay: float, function: Callable[[], None]) -> None:
        """Run ``function`` in the hub's thread after ``delay`` seconds."""
        entry = (self.clock() + delay, next(self._numbers), function)
        self.call(lambda: heapq.heappush(self._later, entry))

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

    def watch(self, sock: socket.socket | int, events: int, ready: Ready) -> None:
        """Call ``ready`` with the events when ``sock`` has them; not once the hub has stopped. In its thread only."""
        if self._stopped:  # a join that the end of the process overtook
            return
        try:  # in this order: most are watched once, and an unknown one would be told with all its details
            self._selector.register(sock, events, ready)
        except KeyError:
            self._selector.modify(sock, events, ready)

    def unwatch(self, sock: socket.socket | int) -> None:
        """Forget ``sock``. In the hub's thread only."""
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(sock)

    def alarm(self, function: Alarm, when: float) -> None:
        """Call ``function`` with the time once that is ``when``, which replaces what was said before. In the hub's
        thread only.

        Args:
            function: a method, most likely; it has one alarm at a time.
            when: monotonic time; infinity takes the alarm back.
        """
        if when < math.inf:
            self._alarms[function] = when
        else:
            self._alarms.pop(function, None)

    def on_stall(self, watcher: Callable[[float], None]) -> None:
        """Call ``watcher`` with the gap in seconds that this thread was late by; before any alarm is acted on."""
        self._stall_watchers.append(watcher)

    def on_close(self, closer: Callable[[], None]) -> None:
        """Call ``closer`` in the hub's thread when it stops."""
        self._closers.append(closer)

    def _drain(self, _: int) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self._wake)

    def run(self) -> None:
        """Serve until ``stop``: what the thread does."""
        while not self._stopping:
            self.turn()
        with self._calls_guard:  # no thread writes to the descriptor from here on: others get its number
            self._stopped = True
            self._selector.close()
            os.close(self._wake)
        while self._calls:
            self._guarded(self._calls.popleft())

    def turn(self) -> None:
        """Wait for the next thing, and do what is ready or due."""
        later = self._later[0][0] if self._later else math.inf
        next_due = min(later, min(self._alarms.values(), default=math.inf))
        due = max(next_due, self._looked)  # what was past when it was asked for shows no stall
        patience = None if due == math.inf else min(max(due - self.clock(), 0.0), LONGEST_SLEEP)
        ready = self._selector.select(patience)
        began = min(due, self.clock())
        for key, events in ready:
            self._guarded(key.data, events)
        while self._calls:
            self._guarded(self._calls.popleft())
        self._act(began)

    def _act(self, began: float) -> None:
        """Do what is due; ``began`` is when this turn woke up, or was to wake up if that is earlier."""
        now = self._look_for_stall(began)
        while self._later and self._later[0][0] <= now:
            self._guarded(heapq.heappop(self._later)[2])
        if min(self._alarms.values(), default=math.inf) <= now:
            for function in [function for function, when in self._alarms.items() if when <= now]:
                if self._alarms.pop(function, None) is not None:  # one that was before it may have taken it back
                    self._guarded(function, now)
        self._look_for_stall(now)  # nothing of this takes long, unless we do not get to run

    def _look_for_stall(self, since: float) -> float:
        """Tell the watchers if more than ``STALL`` has passed; returns the time."""
        now = self._looked = self.clock()
        if now - since > STALL:
            for watcher in tuple(self._stall_watchers):
                self._guarded(watcher, now - since)
        return now

    def _guarded(self, function: Callable[..., None], *args: float) -> None:
        try:
            function(*args)
        except Exception:
            logger.exception("the hub goes on after an error in %r", function)

    def _stop(self) -> None:
        for closer in self._closers:
            self._guarded(closer)
        self._stopping = True
