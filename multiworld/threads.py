"""Blocking work next to an event loop, each in a named daemon thread: the exit of an executor would block."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from typing import Generic, ParamSpec, TypeVar, cast

#: idents of the threads that wait in ``within``
_waiting: set[int] = set()

P = ParamSpec("P")
T = TypeVar("T")


class _Handover(Generic[T]):
    """A result that the waiting thread takes, or that is given back once that thread has stopped waiting."""

    def __init__(self, give_back: Callable[[T], None]) -> None:
        self._give_back = give_back
        self._lock = threading.Lock()
        self._outcome: queue.SimpleQueue[tuple[T | None, BaseException | None]] = queue.SimpleQueue()
        self._gone = False

    def work(self, function: Callable[[], T]) -> None:
        try:
            value = function()
        except BaseException as error:  # noqa: BLE001 - raised in the thread that waits
            self._outcome.put((None, error))
            return
        with self._lock:
            if not self._gone:
                self._outcome.put((value, None))
                return
        self._give_back(value)

    def take(self, seconds: float) -> T:
        try:
            value, error = self._outcome.get(timeout=seconds)
        except BaseException:
            self._go()
            raise
        if error is not None:
            raise error
        return cast("T", value)

    def _go(self) -> None:
        with self._lock:
            self._gone = True
        with contextlib.suppress(queue.Empty):
            value, error = self._outcome.get_nowait()
            if error is None:
                self._give_back(cast("T", value))


def start_or_run(name: str, function: Callable[[], object]) -> None:
    """Run ``function`` in a daemon thread called ``name``; in this one when the interpreter ends.

    From Python 3.12 on no thread can be started then, in ``atexit`` either.
    """
    try:
        threading.Thread(target=function, name=name, daemon=True).start()
    except RuntimeError:
        function()


def within(seconds: float, function: Callable[[], T], name: str, give_back: Callable[[T], None]) -> T:
    """Run ``function()`` in a daemon thread and wait for its result, but no longer than ``seconds``.

    Args:
        give_back: what to do with a result that comes too late.

    Raises:
        TimeoutError: it is not done; its thread goes on alone.
    """
    handover = _Handover(give_back)
    threading.Thread(target=handover.work, args=(function,), name=name, daemon=True).start()
    _waiting.add(threading.get_ident())
    try:
        return handover.take(seconds)
    except queue.Empty:
        raise TimeoutError from None
    finally:
        _waiting.discard(threading.get_ident())


def waiting_in_join() -> set[int]:
    """Idents of the threads that wait in ``within``: for a join or a rejoin."""
    return set(_waiting)


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
        except BaseException as error:  # noqa: BLE001 - raised where it is awaited
            failure = error
            outcome = lambda: future.set_exception(failure)  # noqa: E731
        with contextlib.suppress(RuntimeError):  # the loop was closed: nothing awaits it
            loop.call_soon_threadsafe(settle, outcome)

    threading.Thread(target=work, name=name, daemon=True).start()
    return await future
