"""Events: what happens to worlds, as frozen data, and how subscribers get it.

Callbacks run in a thread of their own; streams are read in an event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future
from dataclasses import dataclass, field

from multiworld.errors import BrokenWorldException, GaveUp, MultiWorldError, WrongContext

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened.

    Attributes:
        world: name of the world; empty for an event of the whole process.
        generation: generation of the world; 0 for an event of the whole process.
        rank: our rank in it; -1 for an event of the whole process.
        at: wall-clock time, seconds since the epoch.
        monotonic: monotonic time in seconds, for differences.
    """

    world: str = ""
    generation: int = 0
    rank: int = -1
    at: float = field(default_factory=time.time)
    monotonic: float = field(default_factory=time.monotonic)


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldJoined(Event):
    """We are in: all members have met. ``size`` members; ``seconds`` it took."""

    size: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSuspected(Event):
    """A peer has been silent for ``silence`` seconds, and may be lost soon."""

    peer: int
    silence: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerRecovered(Event):
    """A suspected peer gave a sign of life after ``silence`` seconds."""

    peer: int
    silence: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerLeft(Event):
    """A peer left in good order; operations that need it raise ``PeerLost`` from now on."""

    peer: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldBroken(Event):
    """The world broke. ``failure`` is the first cause, the one that its waiters got."""

    failure: BrokenWorldException


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceLost(Event):
    """CUDA refuses every call of this process on ``device``, which the world is on; it breaks with ``failure``."""

    device: str
    failure: BrokenWorldException


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldLeft(Event):
    """We left the world in good order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnStall(Event):
    """Our own liveness thread did not run for ``gap`` seconds; peers are not suspected for that time."""

    gap: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptFailed(Event):
    """A supervisor could not assemble the world, and tries again ``after`` seconds."""

    failure: MultiWorldError
    after: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WorldGivenUp(Event):
    """A supervisor has given up on the world. ``failure`` is what ``supervisor[name]`` raises from now on."""

    failure: GaveUp


@dataclass(frozen=True, slots=True, kw_only=True)
class Draining(Event):
    """A supervisor assembles nothing any more, and is not ready: finish what is under way, and end."""


#: events that wait for a slow callback; beyond that the oldest are dropped
MAX_BACKLOG = 10_000
#: how long ``join`` and ``rejoin`` wait until the callbacks have been told that we are in
TELLING_SECONDS = 1.0


class Subscription:
    """One callback, until it is cancelled."""

    def __init__(self, callback: Callable[[Event], None]) -> None:
        self._callback: Callable[[Event], None] | None = callback

    def cancel(self) -> None:
        self._callback = None

    def hand(self, event: Event) -> None:
        callback = self._callback
        if callback is None:
            return
        try:
            callback(event)
        except Exception:
            logger.exception("a subscriber failed on %s", type(event).__name__)


_Entry = tuple[Event, tuple[Subscription, ...]] | Future[None] | None


class Callbacks:
    """The callbacks of one ``MultiWorld``.

    They run in a thread of their own, so that a callback may block or call anything, ``rejoin`` and ``close``
    included, while heartbeats go on. The thread is started by the first subscription.

    Only the queue is shared with the thread: nothing that runs keeps a callback, or the ``MultiWorld`` that a
    callback refers to, alive.
    """

    def __init__(self) -> None:
        # Reentrant: a stream or a subscription may be collected in the middle of ours.
        self._lock = threading.RLock()
        self._subscriptions: list[Subscription] = []
        self._entries: queue.SimpleQueue[_Entry] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        self._overflowed = False

    def subscribe(self, callback: Callable[[Event], None]) -> Callable[[], None]:
        """Call ``callback`` for each event from now on; returns a function that ends this."""
        subscription = Subscription(callback)
        with self._lock:
            self._subscriptions.append(subscription)
            if self._thread is None:
                self._thread = threading.Thread(
                    target=_hand_out, args=(self._entries,), name="mw-callbacks", daemon=True
                )
                self._thread.start()

        def unsubscribe() -> None:
            subscription.cancel()
            with self._lock, contextlib.suppress(ValueError):
                self._subscriptions.remove(subscription)

        return unsubscribe

    def put(self, event: Event) -> None:
        """Queue ``event`` for the present subscribers; returns at once."""
        with self._lock:
            subscriptions = tuple(self._subscriptions)
        if not subscriptions:
            return
        if self._entries.qsize() >= MAX_BACKLOG:
            self._drop_oldest()
        self._entries.put((event, subscriptions))

    def told(self) -> Future[None]:
        """Done once what is queued now has been handed out; at once in the callbacks' own thread."""
        reached: Future[None] = Future()
        if self._thread is None or threading.current_thread() is self._thread:
            reached.set_result(None)
        else:
            self._entries.put(reached)
        return reached

    def end(self) -> None:
        """Hand out what is queued, then end the thread; returns at once. From any thread, a destructor included."""
        self._entries.put(None)

    def join(self, seconds: float) -> None:
        """Wait for the end of the thread, at most ``seconds``; not in that thread itself."""
        if self._thread is not None and threading.current_thread() is not self._thread:
            self._thread.join(seconds)

    def _drop_oldest(self) -> None:
        if not self._overflowed:
            self._overflowed = True
            logger.warning("a subscriber is slow: more than %d events wait, the oldest are dropped", MAX_BACKLOG)
        with contextlib.suppress(queue.Empty):
            entry = self._entries.get_nowait()
            if isinstance(entry, Future):
                entry.set_result(None)


def _hand_out(entries: queue.SimpleQueue[_Entry]) -> None:
    """Call the callbacks; what the thread keeps is the queue, and an event only while it is handed out."""
    while (entry := entries.get()) is not None:
        if isinstance(entry, Future):
            entry.set_result(None)
        else:
            event, subscriptions = entry
            for subscription in subscriptions:
                subscription.hand(event)
            del event, subscriptions, subscription
        del entry


class EventBus:
    """Hands events to subscribers, from any thread, without ever blocking the publisher.

    Sessions hold the bus; the bus does not hold the callbacks, which may refer to the ``MultiWorld``: that one holds
    them, so that it can be collected.
    """

    def __init__(self, callbacks: Callbacks) -> None:
        self._lock = threading.RLock()  # reentrant: a stream may be collected in the middle of ours, and unsubscribes
        self._callbacks = weakref.ref(callbacks)
        self._streams: list[Callable[[Event], None]] = []

    def attach(self, put: Callable[[Event], None]) -> Callable[[], None]:
        """Call ``put`` for each event in the thread that publishes; it must not block. Returns what ends this."""
        with self._lock:
            self._streams.append(put)

        def detach() -> None:
            with self._lock, contextlib.suppress(ValueError):
                self._streams.remove(put)

        return detach

    def publish(self, event: Event) -> None:
        with self._lock:
            streams = tuple(self._streams)
        for put in streams:
            put(event)
        callbacks = self._callbacks()
        if callbacks is not None:
            callbacks.put(event)

    def stream(self, running: Callable[[str], asyncio.AbstractEventLoop]) -> AsyncIterator[Event]:
        """Events from this call on, as an asynchronous iterator of the running loop; subscribed at once, not at the
        first step.

        Args:
            running: finds that loop, for the operation of this name, or raises ``WrongContext``.
        """
        return _Stream(self, running)


class _Stream(AsyncIterator[Event]):
    """One subscriber's queue. Bounded: without a reader the oldest events are dropped."""

    def __init__(self, bus: EventBus, running: Callable[[str], asyncio.AbstractEventLoop]) -> None:
        self._unsubscribe: Callable[[], None] = lambda: None  # should there be no loop
        self._running = running
        self._loop = running("events")
        self._ready = asyncio.Event()
        self._backlog: deque[Event] = deque(maxlen=MAX_BACKLOG)
        # Held weakly by the bus: a stream without a reader ends, and its backlog with it.
        stream = weakref.ref(self)

        def put(event: Event) -> None:
            alive = stream()
            if alive is not None:
                alive._put(event)

        self._unsubscribe = bus.attach(put)

    def _put(self, event: Event) -> None:
        self._backlog.append(event)
        with contextlib.suppress(RuntimeError):  # the loop was closed: the reader has gone
            self._loop.call_soon_threadsafe(self._ready.set)

    async def __anext__(self) -> Event:
        if self._running("events") is not self._loop:
            raise WrongContext(
                what="events() is read in another event loop than the one it was called in",
                remedy="call events() in the loop that reads them",
                operation="events",
            )
        while not self._backlog:
            self._ready.clear()
            if self._backlog:  # put between the look and the clear
                break
            await self._ready.wait()
        return self._backlog.popleft()

    async def aclose(self) -> None:
        self._unsubscribe()

    def __del__(self) -> None:
        self._unsubscribe()
