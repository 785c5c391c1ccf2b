"""The ties of the engine to waiting threads, an event loop, the hub and the backends of its session."""

from __future__ import annotations

import asyncio
import contextlib
import enum
import math
import os
import selectors
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from multiworld.engine.engine import Compiled, CompiledReceive, CompiledSend, Engine, Outcome
from multiworld.errors import BrokenWorldException, LossReason
from multiworld.matching.operation import BatchOperation, Operation
from multiworld.process import wake_ups
from multiworld.process.torch_modes import torch_modes_active, without_torch_modes
from multiworld.transport.descriptors import reserve
from multiworld.transport.reactor import Reactor
from multiworld.transport.sockets import made


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
                with contextlib.nullcontext() if plain else _outside_of_modes(), self._owner.lock:
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
        self._loop = loop
        if asyncio._get_running_loop() is loop:
            self._register()
        else:
            with contextlib.suppress(RuntimeError):  # closed just now
                loop.call_soon_threadsafe(self._register)

    def resolve(self, future: asyncio.Future[None]) -> None:
        """Wake the task that awaits ``future``."""
        # Not by the thread's number: another thread may run the loop by now, and this one wait for itself.
        if self._loop is not None and asyncio._get_running_loop() is self._loop:
            wake_ups.settle(future)
        elif self._loop is not None:
            wake_ups.wake(self._loop, future)

    def _register(self) -> None:
        with self._owner.lock:  # else it may be closed meanwhile
            loop, native = self._loop, self._native
            if loop is None or native is None:
                return
            self._reader = reserve.make(native.readable)
            loop.add_reader(self._reader, self._progress)
        self._progress()  # for what has ended before

    def _progress(self) -> None:
        try:
            with _outside_of_modes(), self._owner.lock:
                self._engine.progress()
        except BaseException:
            self._owner.interrupted("data was moved")  # what has ended is not told again
            raise

    def drain(self, peer: int) -> None:
        """Read what ``peer`` has sent, and settle what that ends."""
        with _outside_of_modes(), self._owner.lock:
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

    def send_value(self, ranks: Sequence[int], gid: int, name: bytes, value: bytes) -> None:
        """Send a value for the set-up of a backend to these members."""
        if self._native is not None:
            self._native.value(tuple(ranks), gid, name, value)

    def say_bye(self, *, gives_up: bool) -> None:
        """Say to all peers that we leave, and nothing follows."""
        self._native.bye(gives_up)

    def stop(self, *, orderly: bool) -> None:
        """Read and write callers' memory no more; with ``orderly``, what was sent still goes out."""
        self._native.end(orderly)

    def shut(self, kept: Iterable[int]) -> dict[int, socket.socket]:
        """End the data connections, after ``stop``, but for those to ``kept``, as far as they are there: these are
        returned."""
        native = self._native
        descriptors = {} if native is None else native.shut(tuple(kept))
        return {peer: made(socket.socket, fileno=descriptor) for peer, descriptor in descriptors.items()}

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
            with _outside_of_modes(), owner.lock:
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


def _outside_of_modes() -> AbstractContextManager[None]:
    """Leave the caller's torch modes: results are made in the thread that moves the data."""
    return without_torch_modes() if torch_modes_active() else contextlib.nullcontext()
