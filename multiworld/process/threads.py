"""Blocking work next to an event loop, each in a named daemon thread: the exit of an executor would block."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError, wait
from functools import partial
from types import CodeType, FrameType, FunctionType
from typing import Any, ParamSpec, TypeVar, cast

_blocking: set[CodeType] = set()

P = ParamSpec("P")
T = TypeVar("T")


def blocking(function: Callable[P, T]) -> Callable[P, T]:
    """Mark a function in which a caller's thread waits, or is about to, for ``blocked``; a call costs nothing more."""
    _blocking.add(cast("FunctionType", function).__code__)
    return function


def blocked() -> set[int]:
    """Idents of the threads that are in a function marked as blocking."""
    return {ident for ident, frame in sys._current_frames().items() if _is_blocking(frame)}


def _is_blocking(frame: FrameType | None) -> bool:
    while frame is not None and frame.f_code not in _blocking:
        frame = frame.f_back
    return frame is not None


def start_or_run(name: str, function: Callable[[], object]) -> None:
    """Run ``function`` in a daemon thread called ``name``; in this one when the interpreter ends.

    From Python 3.12 on no thread can be started then, in ``atexit`` either.
    """
    try:
        threading.Thread(target=function, name=name, daemon=True).start()
    except RuntimeError:
        function()


@blocking
def within(seconds: float, function: Callable[[], T], name: str) -> T:
    """Run ``function()`` in a daemon thread and wait for its result for at most ``seconds``.

    Raises:
        TimeoutError: it is not done; its thread goes on alone.
    """
    future = _begun(name, function)
    wait([future], min(seconds, threading.TIMEOUT_MAX))
    if future.cancel():  # not done yet
        raise TimeoutError
    return future.result()


@blocking
def wait_here(future: Future[Any], seconds: float | None) -> None:
    """Wait in this thread until ``future`` is done, but no longer than ``seconds``; None waits without a limit."""
    wait([future], None if seconds is None else min(seconds, threading.TIMEOUT_MAX))


async def wait_in_loop(future: Future[Any], seconds: float | None) -> None:
    """As ``wait_here``, awaiting; a cancelled await leaves ``future`` alone."""
    if future.done():
        return
    loop, woken = asyncio.get_running_loop(), asyncio.Event()

    def wake(_: object) -> None:
        with contextlib.suppress(RuntimeError):  # the loop was closed: nothing awaits it
            loop.call_soon_threadsafe(woken.set)

    future.add_done_callback(wake)
    late = None if seconds is None else loop.call_later(min(seconds, threading.TIMEOUT_MAX), woken.set)
    try:
        await woken.wait()
    finally:
        if late is not None:
            late.cancel()


def _begun(name: str, function: Callable[[], T]) -> Future[T]:
    """Run ``function`` in a daemon thread called ``name``: what comes of it, for one who may stop waiting."""
    future: Future[T] = Future()

    def work() -> None:
        with contextlib.suppress(InvalidStateError):  # cancelled
            try:
                future.set_result(function())
            except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
                future.set_exception(error)

    threading.Thread(target=work, name=name, daemon=True).start()
    return future


async def run_in_thread(name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run ``function`` in a daemon thread called ``name`` and await its result.

    A cancelled await returns at once; the thread ends when the function does.
    """
    future = _begun(name, partial(function, *args, **kwargs))
    await wait_in_loop(future, None)
    return future.result()
