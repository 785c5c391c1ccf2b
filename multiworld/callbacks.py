"""The subscribers of events: each event is handed to them in order, in a thread of their own."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from multiworld.events import Event

logger = logging.getLogger(__name__)

#: events that wait for a slow callback; beyond that the oldest are dropped
MAX_BACKLOG = 10_000


class Subscription:
    """One callback, until it is cancelled."""

    def __init__(self, callback: Callable[[Event], None]) -> None:
        self._callback: Callable[[Event], None] | None = callback

    def cancel(self) -> None:
        """Call it no more."""
        self._callback = None

    def hand(self, event: Event) -> None:
        """Call it; one that raises is logged and does not stop the others."""
        callback = self._callback
        if callback is None:
            return
        try:
            callback(event)
        except Exception:
            logger.exception("a subscriber failed on %s", type(event).__name__)


_Entry = tuple["Event", tuple[Subscription, ...]] | threading.Event | None


class Callbacks:
    """The callbacks of one ``MultiWorld``.

    They run in a thread of their own, so that a callback may block or call anything, ``rejoin`` and ``close``
    included, and heartbeats go on. The thread is started by the first subscription.

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
        """Call ``callback`` for each event from now on; returns what ends that."""
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
        """Queue ``event`` for those who are subscribed now; returns at once."""
        with self._lock:
            subscriptions = tuple(self._subscriptions)
        if not subscriptions:
            return
        if self._entries.qsize() >= MAX_BACKLOG:
            self._drop_oldest()
        self._entries.put((event, subscriptions))

    def flush(self, seconds: float) -> bool:
        """Wait until what is queued now has been handed out; False after ``seconds``, or in the callbacks' thread."""
        if self._thread is None:
            return True
        if threading.current_thread() is self._thread:
            return False
        told = threading.Event()
        self._entries.put(told)
        return told.wait(seconds)

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
            if isinstance(entry, threading.Event):
                entry.set()


def _hand_out(entries: queue.SimpleQueue[_Entry]) -> None:
    """Call the callbacks; what the thread keeps is the queue, and an event only while it is handed out."""
    while (entry := entries.get()) is not None:
        if isinstance(entry, threading.Event):
            entry.set()
        else:
            event, subscriptions = entry
            for subscription in subscriptions:
                subscription.hand(event)
            del event, subscriptions, subscription
        del entry
