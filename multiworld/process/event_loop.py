"""The event loop that an awaitable of the package needs, asyncio's, and that a synchronous twin must not block.

Other threads than the loop's wake its tasks here.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator

from multiworld.errors import WrongContext


def running_loop(operation: str, world: str | None = None, rank: int | None = None) -> asyncio.AbstractEventLoop:
    """The running asyncio loop; raises ``WrongContext`` if this thread runs none."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        raise no_loop(operation, world, rank) from None


def no_loop(operation: str, world: str | None = None, rank: int | None = None) -> WrongContext:
    return WrongContext(
        world,
        "this thread runs no asyncio event loop",
        cause="multiworld's awaitables need asyncio; the program runs trio, another event loop, or none",
        remedy="under trio use the synchronous twins in a thread: trio.to_thread.run_sync(w.sync.send, ...), "
        "or anyio on asyncio",
        rank=rank,
        operation=operation,
    )


def check_no_loop(operation: str, world: str | None = None, rank: int | None = None, of: str = "world") -> None:
    """Raise ``WrongContext`` if this thread runs an asyncio loop: a wait here would stop all of its tasks.

    Args:
        of: the object that has ``operation``, as the quick start calls it.
    """
    if asyncio._get_running_loop() is not None:
        raise WrongContext(
            world,
            "a synchronous twin was called in the thread of a running event loop",
            cause="the wait would block the loop, and with it the tasks that the operation may be waiting for",
            remedy=f"await it without sync, as in `await {of}.{operation}(...)`, or call the twin in a thread: "
            f"await asyncio.to_thread({of}.sync.{operation}, ...)",
            rank=rank,
            operation=operation,
        )


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
