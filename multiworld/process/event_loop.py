"""The event loop that an awaitable of the package needs, asyncio's, and that a synchronous twin must not block."""

from __future__ import annotations

import asyncio

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
