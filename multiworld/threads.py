"""Blocking work beside an event loop: one named daemon thread per piece, never an executor whose exit blocks."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

P = ParamSpec("P")
T = TypeVar("T")


def within(seconds: float, function: Callable[[], T], name: str) -> T:
    """Run ``function()`` in a daemon thread and wait for its result, but no longer than ``seconds``.

    Raises:
        TimeoutError: it is not done; its thread goes on alone.
    """
    outcome: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()

    def work() -> None:
        try:
            outcome.put((function(), None))
        except BaseException as error:  # noqa: BLE001 - handed to whoever waits
            outcome.put((None, error))

    threading.Thread(target=work, name=name, daemon=True).start()
    try:
        value, error = outcome.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError from None
    if error is not None:
        raise error
    return cast("T", value)


async def run_in_thread(name: str, function: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> T:
    """Run ``function`` in a daemon thread called ``name`` and await its result.

    A cancelled await returns at once; the thread ends when the function does.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def settle(setter: Callable[[], None]) -> None:
        if not future.done():
            setter()

    def work() -> None:
        try:
            value = function(*args, **kwargs)
            outcome: Callable[[], None] = lambda: future.set_result(value)  # noqa: E731
        except BaseException as error:  # noqa: BLE001 - handed to whoever awaits
            failure = error
            outcome = lambda: future.set_exception(failure)  # noqa: E731
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody waits any more
            loop.call_soon_threadsafe(settle, outcome)

    threading.Thread(target=work, name=name, daemon=True).start()
    return await future
