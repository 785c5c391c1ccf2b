"""All members of a world in one process."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from multiworld import MultiWorld

OP_TIMEOUT = 6.0
SOON = 3.0  # far below the time-out of the operations


@contextlib.contextmanager
def members(store: str, size: int) -> Iterator[tuple[list[Any], ThreadPoolExecutor]]:
    """The members of a world, all in this process, and threads to act for them."""
    with ThreadPoolExecutor(size + 1) as pool, contextlib.ExitStack() as stack:
        homes = [stack.enter_context(MultiWorld()) for _ in range(size)]

        def join(rank: int) -> Any:
            return homes[rank].sync.join("w", rank, size, store=store, op_timeout=OP_TIMEOUT)

        yield list(pool.map(join, range(size))), pool
