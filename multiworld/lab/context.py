"""The inside of a worker process: it runs what its pool sends, and reports how it ended; and the messages of both."""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import inspect
import os
import signal
import sys
import threading
import time
import traceback
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiworld.config import TcpStoreAddress
    from multiworld.worlds.multi_world import MultiWorld
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace

#: the mark of ``Context.send``
SAID = "said"


@dataclass(frozen=True, slots=True)
class Call:
    """Run ``function(context, *args)``: as a task if it is a coroutine function. With ``main``, the worker has no event
    loop, runs this function alone, and ends with it.
    """

    number: int
    function: Callable[..., Any]
    args: tuple[Any, ...]
    main: bool = False


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel the task of a call."""

    number: int


@dataclass(frozen=True, slots=True)
class Tell:
    """A value for ``Context.recv``."""

    value: Any


@dataclass(frozen=True, slots=True)
class Mark:
    """A worker has come to the place ``name``, at a monotonic time: the same clock in all processes of a machine."""

    name: str
    at: float
    value: Any = None


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of a call; times are monotonic."""

    number: int
    started: float
    ended: float
    value: Any = None
    error: BaseException | None = None
    trace: str = ""

    @property
    def seconds(self) -> float:
        return self.ended - self.started


def packed(message: Any) -> bytes:
    """Pickle ``message``; what cannot be pickled in an outcome is replaced by its description."""
    try:
        data = pickle.dumps(message)
        if isinstance(message, Outcome):
            pickle.loads(data)  # noqa: S301 - our own: an error class that pickles but cannot be restored shows here
    except Exception as failure:
        if not isinstance(message, Outcome):
            raise
        text = f"not picklable ({failure!r}): value {message.value!r}, error {message.error!r}"
        data = pickle.dumps(replace(message, value=None, error=RuntimeError(text)))
    return data


class Context:
    """The first argument of every function that a worker runs; in ``kept`` one function leaves things for later
    ones."""

    def __init__(self, name: str, channel: Connection) -> None:
        self.name = name
        self.kept: dict[str, Any] = {}
        self._channel = channel
        self._sending = threading.Lock()
        self._tasks: dict[int, asyncio.Task[Any]] = {}
        self._mw: MultiWorld | None = None

    @property
    def mw(self) -> MultiWorld:
        """The worker's ``MultiWorld``, made at the first use."""
        if self._mw is None:
            from multiworld.worlds.multi_world import MultiWorld

            self._mw = MultiWorld()
        return self._mw

    async def close(self) -> None:
        """Close the worker's ``MultiWorld``; the next use makes another."""
        if self._mw is not None:
            closing, self._mw = self._mw, None
            await closing.close()

    def mark(self, name: str, value: Any = None) -> None:
        """Tell the pool that the worker has come here; it is in the socket when this returns."""
        self._post(Mark(name, time.monotonic(), value))

    def send(self, value: Any) -> None:
        self.mark(SAID, value)

    def recv(self, timeout: float = 30.0) -> Any:
        """The next value of ``Worker.send``; raises ``TimeoutError``. For the function of a worker that runs one
        alone."""
        if not self._channel.poll(timeout):
            raise TimeoutError(f"the pool sent nothing within {timeout} s")
        message: Tell = self._channel.recv()
        return message.value

    def live(self) -> None:
        """Run what the pool asks for, until it closes the channel."""
        with contextlib.suppress(EOFError):
            first = self._channel.recv()
            if first.main:
                self._run_alone(first)
            else:
                asyncio.run(self._serve(first))

    def _run_alone(self, call: Call) -> None:
        started, pid = time.monotonic(), os.getpid()
        value, error, trace = None, None, ""
        try:
            value = call.function(self, *call.args)
        except BaseException as failure:
            if os.getpid() != pid:
                raise
            error, trace = failure, traceback.format_exc()
        if os.getpid() != pid:  # a child that the function has forked ends as every program does
            return
        with contextlib.suppress(OSError):  # the pool may have closed the channel
            self._post(Outcome(call.number, started, time.monotonic(), value, error, trace))
        threading._shutdown()  # type: ignore[attr-defined]  # wait for threads, as every program does at its end
        sys.stdout.flush()
        os._exit(0)  # taking apart what was loaded before the fork takes longer than most tests

    async def _serve(self, first: Call | Cancel) -> None:
        ended = asyncio.Event()

        def read() -> None:
            try:
                self._handle(self._channel.recv())
            except (EOFError, ConnectionResetError):
                ended.set()

        self._handle(first)
        asyncio.get_running_loop().add_reader(self._channel.fileno(), read)
        await ended.wait()

    def _handle(self, message: Call | Cancel) -> None:
        if isinstance(message, Cancel):
            if message.number in self._tasks:
                self._tasks[message.number].cancel()
            return
        task = asyncio.get_running_loop().create_task(self._run(message))
        self._tasks[message.number] = task
        task.add_done_callback(lambda _: self._tasks.pop(message.number, None))

    async def _run(self, call: Call) -> None:
        started = time.monotonic()
        value, error, trace = None, None, ""
        try:
            value = call.function(self, *call.args)
            if inspect.isawaitable(value):
                value = await value
        except SystemExit:
            raise
        except BaseException as failure:  # noqa: BLE001 - reported to the caller
            value, error, trace = None, failure, traceback.format_exc()
        self._post(Outcome(call.number, started, time.monotonic(), value, error, trace))

    def _post(self, message: Mark | Outcome) -> None:
        data = packed(message)
        with self._sending:
            self._channel.send_bytes(data)


def serve_store(context: Context, host: str = "127.0.0.1") -> TcpStoreAddress:
    return context.mw.serve_store(host)


def main(channel: int, name: str) -> None:
    """Be a worker until the pool closes the channel or a function exits."""
    import torch

    torch.set_num_threads(1)
    faulthandler.enable(all_threads=False)  # the others bury the one that crashed
    faulthandler.register(signal.SIGUSR1, all_threads=True)  # the pool asks for the stacks when a call is overdue
    Context(name, Connection(channel)).live()
