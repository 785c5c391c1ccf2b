"""The event loop that an awaitable of the package needs: asyncio's."""

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
