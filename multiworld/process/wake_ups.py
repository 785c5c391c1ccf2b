"""Wake-ups of tasks by other threads than their loop's."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

_local = threading.local()


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
            _wake(loop, future)


def wake(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    """Wake the task in ``loop`` that awaits ``future``, now or after ``woken_after``."""
    held = getattr(_local, "held", None)
    if held is None:
        _wake(loop, future)
    else:
        held.append((loop, future))


def settle(future: asyncio.Future[None]) -> None:
    """Wake the task that awaits ``future``; in its loop."""
    # If its loop was closed with this pending, nothing awaits it; another loop may serve the world by now.
    if not future.done() and not future.get_loop().is_closed():
        future.set_result(None)


def _wake(loop: asyncio.AbstractEventLoop, future: asyncio.Future[None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nothing awaits it
        loop.call_soon_threadsafe(settle, future)
