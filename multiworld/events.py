"""What happens to worlds, as frozen data, and the bus that hands it to whoever listens."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from multiworld.errors import BrokenWorldException

logger = logging.getLogger(__name__)
MAX_BACKLOG = 10_000


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
    """Hands events to subscribers, from any thread, without ever blocking the one who publishes."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # reentrant: a stream may be collected in the middle of ours, and unsubscribes
        self._subscribers: list[Callable[[Event], None]] = []

    def subscribe(self, callback: Callable[[Event], None]) -> Callable[[], None]:
        """Call ``callback`` for each event, in the thread where it happens; it must be quick. Returns what
        unsubscribes."""
        with self._lock:
            self._subscribers.append(callback)

        def unsubscribe() -> None:
            with self._lock, contextlib.suppress(ValueError):
                self._subscribers.remove(callback)

        return unsubscribe

    def publish(self, event: Event) -> None:
        """Hand ``event`` to every subscriber; one that raises is logged and does not stop the others."""
        with self._lock:
            subscribers = tuple(self._subscribers)
        for callback in subscribers:
            try:
                callback(event)
            except Exception:  # noqa: PERF203 - one subscriber's failure must not keep the others
                logger.exception("a subscriber failed on %s", type(event).__name__)

    def stream(self) -> AsyncIterator[Event]:
        """Events from this call on, as an asynchronous iterator of the running loop; subscribed at once, not at the
        first step."""
        return _Stream(self)


class _Stream(AsyncIterator[Event]):
    """One subscriber's queue. Bounded: the oldest events go first when nobody reads."""

    def __init__(self, bus: EventBus) -> None:
        self._loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()
        self._backlog: deque[Event] = deque(maxlen=MAX_BACKLOG)
        # Held weakly by the bus: a stream that nobody reads any more ends, and with it its backlog.
        stream = weakref.ref(self)

        def put(event: Event) -> None:
            alive = stream()
            if alive is not None:
                alive._put(event)

        self._unsubscribe = bus.subscribe(put)

    def _put(self, event: Event) -> None:
        self._backlog.append(event)
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody is left to read
            self._loop.call_soon_threadsafe(self._ready.set)

    async def __anext__(self) -> Event:
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
