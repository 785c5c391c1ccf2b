"""What happens to worlds, as frozen data, and the bus that hands it to whoever listens."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from multiworld.callbacks import MAX_BACKLOG, Callbacks
from multiworld.errors import BrokenWorldException, WrongContext
from multiworld.loops import running_loop


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
class WorldLeft(Event):
    """We left the world in good order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnStall(Event):
    """Our own liveness thread did not run for ``gap`` seconds; nobody is accused for that time."""

    gap: float


class EventBus:
    """Hands events to subscribers, from any thread, without ever blocking the one who publishes.

    Sessions hold the bus; the bus does not hold the callbacks, which may refer to the ``MultiWorld``: that one holds
    them, so that it can be collected.

    Args:
        callbacks: of the ``MultiWorld``.
    """

    def __init__(self, callbacks: Callbacks) -> None:
        self._lock = threading.RLock()  # reentrant: a stream may be collected in the middle of ours, and unsubscribes
        self._callbacks = weakref.ref(callbacks)
        self._streams: list[Callable[[Event], None]] = []

    def attach(self, put: Callable[[Event], None]) -> Callable[[], None]:
        """Call ``put`` for each event in the thread that publishes; it must not block. Returns what ends that."""
        with self._lock:
            self._streams.append(put)

        def detach() -> None:
            with self._lock, contextlib.suppress(ValueError):
                self._streams.remove(put)

        return detach

    def publish(self, event: Event) -> None:
        """Hand ``event`` to every stream, and queue it for the callbacks."""
        with self._lock:
            streams = tuple(self._streams)
        for put in streams:
            put(event)
        callbacks = self._callbacks()
        if callbacks is not None:
            callbacks.put(event)

    def stream(self) -> AsyncIterator[Event]:
        """Events from this call on, as an asynchronous iterator of the running loop; subscribed at once, not at the
        first step."""
        return _Stream(self)


class _Stream(AsyncIterator[Event]):
    """One subscriber's queue. Bounded: the oldest events go first when nobody reads."""

    def __init__(self, bus: EventBus) -> None:
        self._unsubscribe: Callable[[], None] = lambda: None  # should there be no loop
        self._loop = running_loop("events")
        self._ready = asyncio.Event()
        self._backlog: deque[Event] = deque(maxlen=MAX_BACKLOG)
        # Held weakly by the bus: a stream that nobody reads any more ends, and with it its backlog.
        stream = weakref.ref(self)

        def put(event: Event) -> None:
            alive = stream()
            if alive is not None:
                alive._put(event)

        self._unsubscribe = bus.attach(put)

    def _put(self, event: Event) -> None:
        self._backlog.append(event)
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody is left to read
            self._loop.call_soon_threadsafe(self._ready.set)

    async def __anext__(self) -> Event:
        if running_loop("events") is not self._loop:
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
        """Stop listening."""
        self._unsubscribe()

    def __del__(self) -> None:
        self._unsubscribe()
