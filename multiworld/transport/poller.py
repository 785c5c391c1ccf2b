"""The movers of the lanes: the event loop of the world, or a thread that waits for an operation."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import select
import socket
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol, cast

from multiworld.matching.operation import Operation
from multiworld.matching.protocol import Kind, Placement
from multiworld.transport.descriptors import reserve
from multiworld.transport.lane import Lane
from multiworld.transport.reactor import Reactor

OnFrame = Callable[[Lane, int, int, int, int, int, int], Placement]
_local = threading.local()
#: a wait looks around this often, in milliseconds, should a wake-up get lost in a signal handler
LOOK_AROUND_MS = 1000
#: and this often where no descriptor is free for an eventfd, so that nothing can wake it
LOOK_AROUND_UNWOKEN_MS = 5
#: how often the hub looks at what is left to be written, in seconds
REST_SECONDS = 0.02


class _Wake:
    """An eventfd of one thread, which others wake it with; -1 where no descriptor is free."""

    def __init__(self) -> None:
        self.fd = -1
        with contextlib.suppress(OSError):
            self.fd = reserve.make(os.eventfd, 0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def __del__(self) -> None:
        if self.fd >= 0:
            with contextlib.suppress(OSError):
                os.close(self.fd)


def _thread_wake() -> _Wake:
    wake = getattr(_local, "wake", None)
    if wake is None or wake.fd < 0 or _local.pid != os.getpid():
        wake = _local.wake = _Wake()
        _local.pid = os.getpid()
    return cast("_Wake", wake)


@contextlib.contextmanager
def woken_after() -> Iterator[None]:
    """Delay the wake-up of awaiting tasks, for what this thread completes in the block, until the block is left.

    For a thread that completes it under a lock: a loop that is woken needs the lock, and would sleep again.
    """
    held: list[tuple[asyncio.AbstractEventLoop, asyncio.Future[None]]] = []
    before, _local.held = getattr(_local, "held", None), held
    try:
        yield
    finally:
        _local.held = before
        for loop, future in held:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nothing awaits it
                loop.call_soon_threadsafe(_settle, future)


class BridgeOwner(Protocol):
    """Owner of the lanes that are moved."""

    @property
    def lock(self) -> AbstractContextManager[Any]: ...
    @property
    def lanes(self) -> Mapping[int, Lane]: ...
    @property
    def hub(self) -> Reactor: ...
    def pump(self, lane: Lane) -> None: ...
    def lane_ended(self, peer: int, error: OSError | None) -> None: ...
    def interrupted(self, what: str) -> None: ...


class SyncPoller:
    """A thread that waits: it polls the lanes of a bridge and moves what is ready.

    Attributes:
        wake: eventfd that wakes it; the thread's own, open only as long as that lives. -1: it looks by itself.
    """

    def __init__(self, bridge: LoopBridge, wake: _Wake) -> None:
        self.wake = wake.fd
        self._wake_of = weakref.ref(wake)
        self._bridge, self._owner = bridge, bridge.owner
        self._lanes = {lane.fd: lane for lane in self._owner.lanes.values()}
        self._poll = select.poll()
        self._patience_ms = LOOK_AROUND_MS if self.wake >= 0 else LOOK_AROUND_UNWOKEN_MS
        if self.wake >= 0:
            self._poll.register(self.wake, select.POLLIN)
        self._writing: set[int] = set()
        for fd in self._lanes:
            self._poll.register(fd, select.POLLIN)

    def belongs_to(self, wake: _Wake) -> bool:
        """Return whether this is the poller of that thread, and not of a dead one of the same number."""
        return self._wake_of() is wake

    def wake_up(self) -> None:
        """Let the thread look whether it is done; who moves the data looks when it has moved it. Under the lock."""
        if self._bridge.mover is not self and self.wake >= 0:
            os.eventfd_write(self.wake, 1)

    def turn(self, until: float = math.inf) -> None:
        """Wait until something is ready, or the time is ``until``, and move it."""
        self._update()
        left_ms = 1000 * max(0.0, until - time.monotonic())
        for fd, events in self._poll.poll(min(self._patience_ms, left_ms)):
            lane = self._lanes.get(fd)
            if lane is None:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self.wake)
            else:
                self._move(lane, events)

    def _move(self, lane: Lane, events: int) -> None:
        with self._owner.lock:
            if lane.ended:
                self._forget(lane)
                return
            self._bridge.mover = self
            try:
                if events & select.POLLOUT:
                    lane.flush()
                if events & ~select.POLLOUT:
                    self._owner.pump(lane)
            finally:
                self._bridge.mover = None

    def _update(self) -> None:
        """Watch for writability where something is left to write."""
        wanted = {fd for fd, lane in self._lanes.items() if lane.backlog}
        if wanted != self._writing:
            for fd in wanted ^ self._writing:
                self._poll.modify(fd, select.POLLIN | (select.POLLOUT if fd in wanted else 0))
            self._writing = wanted

    def _forget(self, lane: Lane) -> None:
        with contextlib.suppress(KeyError):
            self._poll.unregister(lane.fd)
        self._lanes.pop(lane.fd, None)
        self._writing.discard(lane.fd)


class LoopTie(ABC):
    """The tie of a session's data to the event loop of its world, once there is one."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    @abstractmethod
    def _register(self) -> None:
        """Let the loop move the data from now on; in its thread."""

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let ``loop`` move the lanes from now on. From any thread."""
        if loop.is_closed():  # as if there was none: threads move the lanes
            return
        self._loop = loop
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            running = None
        if running is loop:
            self._register()
        else:
            with contextlib.suppress(RuntimeError):  # closed just now
                loop.call_soon_threadsafe(self._register)

    def resolve(self, future: asyncio.Future[None]) -> None:
        """Wake the task that awaits ``future``."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing awaits it
            # Not by the thread's number: another thread may run the loop by now, and this one wait for itself.
            if self._loop is not None and asyncio._get_running_loop() is self._loop:
                _settle(future)
            elif self._loop is not None:
                held = getattr(_local, "held", None)
                if held is None:
                    self._loop.call_soon_threadsafe(_settle, future)
                else:
                    held.append((self._loop, future))

    def _in_loop(self, function: Callable[[], None]) -> bool:
        if self._loop is None or self._loop.is_closed():
            return False
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(function)
            return True
        return False


class LoopBridge(LoopTie):
    """The ties of a world's lanes to an event loop and to waiting threads.

    Attributes:
        owner: of the lanes.
        on_frame: handles a header, see ``LaneOwner``.
        mover: the thread that moves data now: it need not be woken.
    """

    def __init__(self, owner: BridgeOwner) -> None:
        super().__init__()
        self.owner = owner
        self.mover: SyncPoller | None = None
        self.on_frame: OnFrame
        self._pollers: dict[int, SyncPoller] = {}
        #: those of threads that wait now; to any other's eventfd nothing may be written, its number may be another's
        self._taken: dict[int, SyncPoller] = {}
        self._rest_watched = False

    def wait(self, operation: Operation, seconds: float = math.inf) -> bool:
        """Move the data in the calling thread until ``operation`` is done, but not much longer than ``seconds``;
        whether it is."""
        poller, until = self.begin_wait(), time.monotonic() + seconds
        try:
            with self.owner.lock:
                if not operation.attach(poller.wake_up):
                    return True
            while not operation.done and time.monotonic() < until:
                poller.turn(until)
            return operation.done
        finally:
            with self.owner.lock:
                if not operation.done:
                    operation.attach(None)
                self.end_wait()

    def begin_wait(self) -> SyncPoller:
        """The calling thread's poller, made at its first wait, and taken until it ends its wait."""
        ident = threading.get_ident()
        wake = _thread_wake()
        poller = self._pollers.get(ident)
        if poller is None or not poller.belongs_to(wake):
            poller = self._pollers[ident] = SyncPoller(self, wake)
        self._taken[ident] = poller
        return poller

    def end_wait(self) -> None:
        """The calling thread waits no more. Under the lock, as is who wakes the waiting."""
        self._taken.pop(threading.get_ident(), None)
        if self._rest_watched and not self._served() and any(lane.backlog for lane in self.owner.lanes.values()):
            self._watch_rest(0.0)

    def on_backlog(self, lane: Lane) -> None:
        """Something is left to be written on ``lane``."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: threads that wait do it
            if self._loop is not None and asyncio._get_running_loop() is self._loop:
                self._watch_writable(lane)
            elif self._loop is not None:
                self._loop.call_soon_threadsafe(self._watch_writable, lane)
        for poller in tuple(self._taken.values()):
            with contextlib.suppress(OSError):
                os.eventfd_write(poller.wake, 1)
        if not self._rest_watched:
            self._rest_watched = True
            self._watch_rest(REST_SECONDS)

    def _watch_rest(self, seconds: float) -> None:
        hub, due = self.owner.hub, time.monotonic() + seconds
        hub.call(lambda: hub.alarm(self._write_rest, due))

    def _served(self) -> bool:
        """Return whether a thread or a loop moves the lanes now."""
        return bool(self._taken) or (self._loop is not None and self._loop.is_running())

    def _write_rest(self, now: float) -> None:
        """Write for an operation that its waiter has left, unless a thread or a loop does; in the hub's thread.

        A collective is over for a member that has heard all others, and a cancelled send for its caller; the peers wait
        for the rest of them, whatever that member does next.
        """
        with self.owner.lock:
            lanes = [lane for lane in self.owner.lanes.values() if lane.backlog and not lane.ended]
            if not self._served():
                for lane in lanes:
                    lane.flush()
            self._rest_watched = bool(lanes)
        if lanes:
            self.owner.hub.alarm(self._write_rest, now + REST_SECONDS)

    def drain(self, peer: int) -> None:
        """Read what ``peer`` sent before it left."""
        with self.owner.lock:
            lane = self.owner.lanes[peer]
            if not lane.ended:
                self.owner.pump(lane)

    def lane_ended(self, peer: int) -> bool:
        """Tell whether nothing more comes from ``peer``, all of which was read."""
        return self.owner.lanes[peer].ended

    def send_value(self, ranks: Sequence[int], gid: int, name: bytes, value: bytes) -> None:
        """Send a value for the set-up of a backend to these members. Under the lock."""
        nbytes = len(name) + len(value)
        for rank in ranks:
            self.owner.lanes[rank].put(Kind.VALUE, flags=len(name), key=gid, payload=(name, value), nbytes=nbytes)

    def say_bye(self, *, gives_up: bool) -> None:
        """Say to all peers that we leave, and nothing follows. Under the lock."""
        for lane in self.owner.lanes.values():
            lane.put(Kind.BYE, flags=int(gives_up))

    def stop(self, *, orderly: bool) -> None:
        """Read and write callers' memory no more; with ``orderly``, what was sent still goes out. Under the lock."""
        for lane in self.owner.lanes.values():
            lane.stop_reading() if orderly else lane.cut()

    def shut(self) -> None:
        """End the data connections, after ``stop``."""
        with self.owner.lock:
            for lane in self.owner.lanes.values():
                with contextlib.suppress(OSError):
                    lane.sock.shutdown(socket.SHUT_RDWR)

    def written_out(self) -> bool:
        """Write what is left and say that nothing follows, after an orderly ``stop``; whether the peers have all."""
        with self.owner.lock:
            pending = [lane for lane in self.owner.lanes.values() if not lane.linger()]
            return not pending

    def traffic(self) -> dict[int, tuple[int, int]]:
        """Bytes sent and received, by peer."""
        return {peer: (lane.sent, lane.received) for peer, lane in self.owner.lanes.items()}

    def on_lane_end(self, lane: Lane, error: OSError | None) -> None:
        """See ``LaneOwner``."""
        self._in_loop(lambda: self._unregister(lane))
        self.owner.lane_ended(lane.peer, error)

    def on_torn(self, lane: Lane) -> None:
        """See ``LaneOwner``."""
        self.owner.interrupted(f"data of rank {lane.peer} was moved")

    def close(self) -> None:
        """Let go of the loop and of the sockets. From any thread."""
        self._pollers.clear()

        def let_go() -> None:
            for lane in self.owner.lanes.values():
                self._unregister(lane)
                lane.sock.close()

        if not self._in_loop(let_go):
            for lane in self.owner.lanes.values():
                lane.sock.close()

    def _register(self) -> None:
        assert self._loop is not None  # noqa: S101 - for the type checker; attach has set it
        with self.owner.lock:
            for lane in self.owner.lanes.values():
                if not lane.ended and lane.sock.fileno() >= 0:
                    self._loop.add_reader(lane.fd, self._readable, lane)
                    self._watch_writable(lane)

    def _unregister(self, lane: Lane) -> None:
        if self._loop is not None and lane.sock.fileno() >= 0 and not self._loop.is_closed():
            self._loop.remove_reader(lane.fd)
            self._loop.remove_writer(lane.fd)

    def _watch_writable(self, lane: Lane) -> None:
        if self._loop is not None and lane.backlog and not lane.ended and lane.sock.fileno() >= 0:
            self._loop.add_writer(lane.fd, self._writable, lane)

    def _readable(self, lane: Lane) -> None:
        with self.owner.lock:
            if lane.ended:
                self._unregister(lane)
            else:
                self.owner.pump(lane)

    def _writable(self, lane: Lane) -> None:
        with self.owner.lock:
            lane.flush()
            if not lane.backlog and self._loop is not None and lane.sock.fileno() >= 0:
                self._loop.remove_writer(lane.fd)


def _settle(future: asyncio.Future[None]) -> None:
    # If its loop was closed with this pending, nothing awaits it; another loop may serve the world by now.
    if not future.done() and not future.get_loop().is_closed():
        future.set_result(None)
