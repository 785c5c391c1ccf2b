"""A place for a backend: of a group for its collectives, or of two members for the messages of one to the other.

It is opened by the first operation that needs it, used in order, and freed with the session.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from contextlib import AbstractContextManager
from typing import Any, Protocol

from multiworld.backends.choice import make_driver
from multiworld.backends.setup_store import SetupStore
from multiworld.config import WorldConfig

# Not when they are needed: an import in the middle of a collective fails where no file descriptor is free.
from multiworld.engine.engine import Engine
from multiworld.errors import BrokenWorldException, InvalidArgument, LossReason, PeerLost
from multiworld.matching.driver import Driver, DriverRefused
from multiworld.matching.membership import Membership
from multiworld.matching.operation import Launch, Operation
from multiworld.matching.protocol import ranks_of_channel
from multiworld.process.event_loop import woken_after
from multiworld.process.thread_parking import immortal
from multiworld.process.threads import start_or_run
from multiworld.transport.reactor import Reactor

logger = logging.getLogger(__name__)

#: what all members together may send to set a backend up; a thousand of them need some hundred bytes each
MAX_SET_UP_BYTES = 16 << 20
#: how long the control connections have to name the peer, when the backend says only that something failed
VERDICT_SECONDS = 0.25


class SlotOwner(Protocol):
    """The session that the backend works for."""

    @property
    def membership(self) -> Membership: ...
    @property
    def config(self) -> WorldConfig: ...
    @property
    def lock(self) -> AbstractContextManager[Any]: ...
    @property
    def hub(self) -> Reactor: ...
    @property
    def failure(self) -> BrokenWorldException | None: ...
    @property
    def engine(self) -> Engine: ...
    def break_(self, error: BrokenWorldException) -> None: ...


class DriverSlot:
    """The backend of one group or channel of one session.

    All methods but ``abort`` and ``free`` are called under the session's lock.
    """

    def __init__(self, session: SlotOwner, gid: int) -> None:
        self.ranks: tuple[int, ...] = ()
        self._session = session
        self._gid = gid
        self._store = SetupStore(self._broadcast, session.config.join_timeout)
        self._driver: Driver | None = None
        self._opener: threading.Thread | None = None
        self._ready = False
        self._cut = False
        self._waiting: deque[Launch] = deque()
        self._set_up_bytes = 0

    def launch(self, launch: Launch) -> None:
        """Start it, after those before it."""
        self._session.engine.under_way.add(launch)
        self._waiting.append(launch)
        launch.turn = self._start_waiting
        if self._ready:
            self._start_waiting()
        elif self._opener is None:
            session, place = self._session, self.ranks.index(self._session.membership.rank)
            self._driver = make_driver(session.config, place, len(self.ranks), self._store)
            name = f"mw-open-{session.membership.name}"
            self._opener = threading.Thread(target=self._open, args=(self._driver,), name=name, daemon=True)
            self._opener.start()

    def adopt(self, launch: Launch) -> None:
        """Hear the end of what compiled code has launched."""
        self._session.engine.under_way.add(launch)
        self._start(launch)

    def expects(self, nbytes: int) -> bool:
        """Tell whether a member's value for the set-up, of that many bytes, can be right."""
        self._set_up_bytes += nbytes
        return self._set_up_bytes <= MAX_SET_UP_BYTES

    def receive(self, name: bytes, value: bytes) -> None:
        """A member's value for the set-up has come."""
        self._store.receive(name.decode(errors="replace"), value)

    def stop(self, *, cut: bool) -> None:
        """Release the threads that wait for the backend to open, and start nothing any more.

        With ``cut``, ``abort`` is to follow once the others have been told. Without, its connections stay until they
        are closed in good order: peers may still be reading what we sent.
        """
        self._cut = cut
        self._store.stop()
        self._drop_waiting()

    def abort(self) -> None:
        """Release the threads that wait in the backend, after ``stop(cut=True)``. Without the lock; blocks on
        nothing."""
        if self._driver is not None and self._cut:
            start_or_run(f"mw-abort-{self._session.membership.name}", self._driver.abort)

    def free(self, deadline: float) -> None:
        """Free the backend; blocks for at most about ``deadline`` seconds."""
        if self._driver is None:
            return
        if self._cut or not self._ready:
            self._driver.abort()
        if self._opener is not None:
            self._opener.join(deadline)
        if self._cut:
            self._driver.abort()  # connections that were made meanwhile
        self._driver.close(deadline)

    def drop_in_child(self) -> None:
        """Leave the backend alone in a forked child."""
        immortal(self._driver)
        immortal(self._store)

    def _broadcast(self, key: str, value: bytes) -> None:
        others = tuple(rank for rank in self.ranks if rank != self._session.membership.rank)
        with self._session.lock:
            if (native := self._session.engine.native) is not None:
                native.value(others, self._gid, key.encode(), value)

    def _open(self, driver: Driver) -> None:
        try:
            driver.open()
        except Exception as error:  # noqa: BLE001 - of torch's many types
            self._failed(error)
            return
        with self._session.lock:
            self._ready = True
            self._start_waiting()
            self._connect(driver)

    def _connect(self, driver: Driver) -> None:
        """Let compiled code hand the messages of this channel to the launcher of its driver."""
        launcher = driver.transfers(self._adopt)
        if launcher is not None and ranks_of_channel(self._gid):
            source, target = self.ranks
            receives = target == self._session.membership.rank
            self._session.engine.connect(source if receives else target, receives, launcher)

    def _adopt(self, number: int) -> None:
        with self._session.lock:
            self._session.engine.hear_end(number)

    def _start_waiting(self) -> None:
        """Start what is ready, up to the first whose memory is not."""
        while self._ready and self._waiting and self._waiting[0].ready and self._session.failure is None:
            self._start(self._waiting.popleft())

    def _drop_waiting(self) -> None:
        """Drop what was not started once the session has ended; its memory is not used any more."""
        while self._waiting:
            launch = self._waiting.popleft()
            if launch.operation is not None and self._session.failure is not None:
                launch.operation.running = False
                launch.operation.fail(self._session.failure)
            self._session.engine.is_over(launch)

    def _start(self, launch: Launch) -> None:
        driver, operation = self._driver, launch.operation
        if driver is None or operation is None:
            return
        try:
            work = launch.start(driver)
        except (TypeError, ValueError, NotImplementedError, RuntimeError) as error:
            self._finished(launch, operation, error)
            return
        launched = (lambda: self._launched(launch)) if launch.streamed else None
        driver.watch(work, lambda error: self._finished(launch, operation, error), launched)

    def _launched(self, launch: Launch) -> None:
        with woken_after(), self._session.lock:
            if self._session.failure is None:
                launch.enqueued()

    def _finished(self, launch: Launch, operation: Operation, error: BaseException | None) -> None:
        session = self._session
        with woken_after(), session.lock:
            operation.running = False
            if session.failure is not None:  # its end was waited for: until now the backend used its memory
                operation.fail(session.failure)
            elif error is None:
                launch.over()
            elif isinstance(error, DriverRefused):
                operation.fail(self._refused(operation, error))
            if session.failure is not None or error is None or isinstance(error, DriverRefused):
                session.engine.is_over(launch)
                return
        self._failed(error)

    def _failed(self, error: BaseException) -> None:
        """The backend failed: a peer is gone, most likely, and the control connections will say which in a moment."""
        session, us = self._session, self._session.membership
        if session.failure is not None:
            return
        if isinstance(error, BrokenWorldException):  # ours, and the others wait for us
            session.break_(error.with_context(world=us.name, generation=us.generation, rank=us.rank))
            return
        lost = PeerLost(us.name, f"the {us.backend} backend failed: {error}", how=LossReason.BACKEND, **us.where())
        session.hub.call_later(VERDICT_SECONDS, lambda: session.break_(lost))

    def _refused(self, operation: Operation, error: Exception) -> InvalidArgument:
        us = self._session.membership
        cause = "it cannot do this for this dtype or reduction"
        return InvalidArgument(us.name, f"the backend refuses: {error}", cause=cause, **us.where(operation.name))
