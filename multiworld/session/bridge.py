"""The ties of the engine to waiting threads, an event loop, the hub and the backends of its session."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import math
import os
import selectors
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final, Protocol

from multiworld.engine.engine import Compiled, CompiledReceive, CompiledSend, Engine, Outcome
from multiworld.errors import BrokenWorldException, LossReason
from multiworld.matching.operation import BatchOperation, Operation
from multiworld.process.event_loop import settle, wake
from multiworld.process.torch_modes import without_torch_modes
from multiworld.rendezvous.renewal import HeldLanes
from multiworld.transport.descriptors import reserve
from multiworld.transport.reactor import Reactor

#: a plain message that has not ended after this many seconds becomes an operation with a deadline, which others can see
PATIENCE: Final = 0.05


#: what a loop runs next, and the descriptor that is readable when it has more to do
Turn = tuple[Sequence[Any], int]
#: of a loop that does not say so
_UNKNOWN: Final[Turn] = (None,), -1
#: of a thread that waits itself
NO_LOOP: Final[Turn] = (), -2


class _Happened(enum.IntEnum):
    """What the compiled engine tells, see ``Event`` in ``mover/engine.h``."""

    LOST = 0
    LANE_ENDED = 1
    BYE = 2
    VALUE = 3
    OWED = 4


class BridgeOwner(Protocol):
    """The session."""

    @property
    def lock(self) -> AbstractContextManager[Any]: ...
    @property
    def hub(self) -> Reactor: ...
    @property
    def failure(self) -> BrokenWorldException | None: ...
    def interrupted(self, what: str) -> None: ...
    def lane_ended(self, peer: int, error: OSError | None) -> None: ...
    def lost(self, peer: int, how: LossReason, what: str) -> None: ...
    def on_bye(self, peer: int, *, gives_up: bool) -> None: ...
    def on_value(self, peer: int, gid: int, name: bytes, value: bytes) -> None: ...


class Bridge:
    """Lets threads and the event loop of a session move the data of its compiled engine, and acts on its events."""

    def __init__(self, owner: BridgeOwner, engine: Engine) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None
        self._owner, self._engine = owner, engine
        self._native = engine.native
        self._traffic: dict[int, tuple[int, int]] = {}
        self._reader = -1
        #: what is awaited in ``ended``, by number, and since when
        self._plain: dict[int, tuple[asyncio.Future[None], float]] = {}
        self.turn = _UNKNOWN
        self._looks = False  # whether the loop will look for those that wait for long

    def start(self) -> None:
        """Listen to the engine, once the session is whole."""
        self._owner.hub.call(self._listen)

    # waiting

    def wait(self, operation: Operation, seconds: float = math.inf) -> bool:
        """Move the data in the calling thread until ``operation`` is done, but no longer than ``seconds``; whether it
        is."""
        native, until = self._native, time.monotonic() + seconds
        if native is not None and isinstance(operation, Compiled) and operation.number:
            in_modes = isinstance(operation, CompiledSend | CompiledReceive)
            while not operation.done:
                outcome = native.wait(operation.number, seconds)
                plain = in_modes and outcome[0] != Outcome.OWED
                with contextlib.nullcontext() if plain else without_torch_modes(), self._owner.lock:
                    operation.take_over(*outcome)
                seconds = until - time.monotonic()
                if seconds <= 0:
                    break
        elif isinstance(operation, BatchOperation):
            for one in operation.operations:
                self.wait(one, max(0.0, until - time.monotonic()))
        else:
            self._sleep(operation, seconds)
        return operation.done

    def attend(self, operation: Operation) -> bool:
        """Move the data for a moment, if the loop has nothing else to do; whether ``operation`` is done then."""
        native, (ready, loop) = self._native, self.turn
        if ready or native is None or not isinstance(operation, Compiled) or not operation.number:
            return False
        outcome = native.attend(operation.number, loop)
        with without_torch_modes(), self._owner.lock:
            operation.take_over(*outcome)
        return operation.done

    def _sleep(self, operation: Operation, seconds: float) -> None:
        """Wait for what others end: work of the backend, or the world."""
        ended = threading.Event()
        with self._owner.lock:
            if not operation.attach(ended.set):
                return
        ended.wait(min(seconds, threading.TIMEOUT_MAX))

    def attach(self, loop: asyncio.AbstractEventLoop) -> None:
        """Let ``loop`` move the data from now on. From any thread."""
        if loop.is_closed():  # as if there was none: threads move it
            return
        self._loop, self._looks = loop, False
        self.turn = _UNKNOWN
        with contextlib.suppress(AttributeError):  # those of asyncio itself have that
            self.turn = loop._ready, loop._selector.fileno()  # type: ignore[attr-defined]
        if asyncio._get_running_loop() is loop:
            self._register()
        else:
            with contextlib.suppress(RuntimeError):  # closed just now
                loop.call_soon_threadsafe(self._register)

    def resolve(self, future: asyncio.Future[None]) -> None:
        """Wake the task that awaits ``future``."""
        # Not by the thread's number: another thread may run the loop by now, and this one wait for itself.
        if self._loop is not None and asyncio._get_running_loop() is self._loop:
            settle(future)
        elif self._loop is not None:
            wake(self._loop, future)

    def _register(self) -> None:
        with self._owner.lock:  # else it may be closed meanwhile
            loop, native = self._loop, self._native
            if loop is None or native is None:
                return
            self._reader = reserve.make(native.readable)
            loop.add_reader(self._reader, self._progress)
        loop.call_soon(self._progress)  # for what has ended before

    def _progress(self) -> None:
        """Move what is ready, and let who awaits what that ends go on; in a callback of the loop."""
        native, woken, rest = None, [], []
        try:
            with self._owner.lock:
                native = self._native
                for number in () if native is None else native.progress():
                    found = self._plain.get(number)
                    rest.append(number) if found is None else woken.append(found[0])
                if rest:
                    with without_torch_modes():
                        self._engine.settle(rest)
        except BaseException:
            self._owner.interrupted("data was moved")  # what has ended is not told again
            raise
        if len(woken) == 1 and not woken[0].done() and native.go_on(woken[0]):
            return  # a turn of the loop earlier than by what it has scheduled
        for future in woken:  # if that is interrupted, ``_look`` finds the others
            settle(future)

    async def ended(self, number: int, began: float) -> None:
        """Await the end of a plain message or broadcast, or of the world; no longer than ``PATIENCE``."""
        loop = asyncio.get_running_loop()
        future = loop.create_future()
        with self._owner.lock:
            if self._native is None or self._engine.failure is not None:
                return
            self._plain[number] = future, began
        if not self._looks:
            self._looks = True
            loop.call_later(PATIENCE, self._look)
        try:
            await future
        finally:
            self._plain.pop(number, None)

    def let_look(self, number: int) -> None:
        """Let who awaits the end of that plain message go on before it."""
        if (found := self._plain.get(number)) is not None:
            self.resolve(found[0])

    def _look(self) -> None:
        """Let those who have waited for long go on the general way."""
        self._looks, now = False, time.monotonic()
        try:
            for future, began in tuple(self._plain.values()):
                if (left := began + PATIENCE - now) > 0:
                    self._looks = True
                    asyncio.get_running_loop().call_later(left, self._look)
                    return
                settle(future)
        except BaseException:
            self._owner.interrupted("it was seen who waits for long")  # the others would have no deadline
            raise

    def drain(self, peer: int) -> None:
        """Read what ``peer`` has sent, and settle what that ends."""
        with without_torch_modes(), self._owner.lock:
            if self._native is not None:
                self._native.drain(peer)
                for operation in tuple(self._engine.operations):
                    if isinstance(operation, Compiled):
                        operation.settle()
                self._engine.begin()

    def lane_ended(self, peer: int) -> bool:
        """Tell whether nothing more comes from ``peer``, all of which was read."""
        return self._native is None or not self._native.drain(peer)

    # sending, and the end

    def stop(self, *, orderly: bool) -> None:
        """Read and write callers' memory no more; with ``orderly``, what was sent still goes out."""
        self._native.end(orderly)
        for future, _ in tuple(self._plain.values()):
            self.resolve(future)

    def shut(self, kept: Iterable[int]) -> HeldLanes:
        """End the data connections, after ``stop``, but for those to ``kept``, as far as they are there: these are
        returned."""
        native = self._native
        return HeldLanes() if native is None else HeldLanes(native, native.shut(tuple(kept)))

    def written_out(self) -> bool:
        """Write what is left and say that nothing follows, after an orderly ``stop``; whether the peers have all."""
        return self._native is None or bool(self._native.linger())

    def flushed(self) -> bool:
        """Write what the connections take; whether nothing is left."""
        return self._native is None or not self._native.flush()

    def traffic(self) -> dict[int, tuple[int, int]]:
        """Bytes sent and received, by peer."""
        native = self._native
        return self._traffic if native is None else native.traffic()

    def ways(self) -> dict[int, str]:
        """How large payloads go to each peer: ``tcp``, ``unix`` or ``ring``."""
        native = self._native
        return {} if native is None else native.ways()

    def close(self) -> None:
        """Let go of the loop, the hub and the connections. From any thread."""
        with self._owner.lock:
            native = self._native
            if native is None:
                return
            self._traffic = native.traffic()
            self._native = self._engine.native = None
        eventful = native.eventful()

        # Each closure keeps the engine, and so its descriptors, until they are not watched any more.
        def forget(native: Any = native) -> None:  # noqa: ARG001
            self._owner.hub.unwatch(eventful)

        def unregister(native: Any = native) -> None:  # noqa: ARG001
            if self._loop is not None:
                self._loop.remove_reader(self._reader)

        self._owner.hub.call(forget)
        if self._reader >= 0 and self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(unregister)

    # events, in the hub's thread

    def _listen(self) -> None:
        native = self._native
        if native is not None:
            self._owner.hub.watch(native.eventful(), selectors.EVENT_READ, lambda _: self.act())
            self.act()

    def act(self) -> None:
        """Act on what the engine tells."""
        native = self._native
        if native is None:
            return
        for kind, peer, number, operation, text in native.events():
            try:
                self._handle(_Happened(kind), peer, number, operation, text)
            except Exception as error:  # noqa: BLE001, PERF203 - the world's end tells it
                self._engine.mishandled(peer, error)

    def _handle(self, kind: _Happened, peer: int, number: int, operation: int, text: bytes) -> None:
        owner = self._owner
        if kind is _Happened.OWED:
            with without_torch_modes(), owner.lock:
                self._engine.begin()
        elif kind is _Happened.VALUE:
            with owner.lock:
                if owner.failure is not None:  # no backend is set up any more
                    return
                owner.on_value(peer, operation, text[:number], text[number:])
        elif kind is _Happened.BYE:
            owner.on_bye(peer, gives_up=bool(number))
        elif kind is _Happened.LANE_ENDED:
            owner.lane_ended(peer, OSError(number, os.strerror(number)) if number else None)
        elif number:
            self._engine.protocol_error(peer, text.decode())
        else:
            owner.lost(peer, LossReason.LEFT, text.decode())
