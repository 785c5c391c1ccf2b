"""A check that the caller's memory is the caller's again, switched on by ``MULTIWORLD_DEBUG_MEMORY=1``.

Every operation then works on a copy of the caller's tensors. When it has returned or raised, the copy is filled with a
pattern and put aside. Whatever still writes to it is found out, and what is still sent from it arrives as the pattern.
It costs a copy of every tensor each way, and ``LIMIT_BYTES`` of memory. Tensors that stay on a device are used where
they are, and not watched.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

import torch

from multiworld.errors import MultiWorldError
from multiworld.matching.operation import Operation

logger = logging.getLogger(__name__)

ACTIVE: Final = os.environ.get("MULTIWORLD_DEBUG_MEMORY", "") not in ("", "0")
PATTERN: Final = 0xDD
#: how much is kept aside before the oldest is looked at and let go
LIMIT_BYTES: Final = 256 << 20


class MemoryTouched(MultiWorldError, AssertionError):
    """Memory was written to after the operation that borrowed it had returned or raised: a defect of this package."""

    likely_cause = "a defect of multiworld"
    what_to_do = "report it, with the operation named here"


_guard = threading.Lock()
#: the operation that had it, and the memory
_aside: deque[tuple[str, torch.Tensor]] = deque()
_bytes = 0


@contextlib.contextmanager
def watching() -> Iterator[Callable[[Operation], Operation]]:
    """Take what one operation borrows; in the block, which is left when that has returned or raised.

    Raises:
        MemoryTouched: what an earlier operation borrowed was written to since.
    """
    loans: list[tuple[str, torch.Tensor]] = []

    def watch(operation: Operation) -> Operation:
        if ACTIVE:
            loans.extend((operation.name, memory) for memory in operation.loans() if memory.is_cpu)
        return operation

    try:
        yield watch
    finally:
        for name, memory in loans:
            _put_aside(name, memory)


def verify() -> None:
    """Look at everything that was put aside, and let go of it.

    Raises:
        MemoryTouched: something of it was written to.
    """
    global _bytes
    with _guard:
        released, _bytes = list(_aside), 0
        _aside.clear()
    for one in released:
        _check(*one)


def _put_aside(operation: str, memory: torch.Tensor) -> None:
    global _bytes
    flat = memory.reshape(-1).view(torch.uint8)
    with torch.inference_mode():
        flat.fill_(PATTERN)
    old: list[tuple[str, torch.Tensor]] = []
    with _guard:
        _aside.append((operation, flat))
        _bytes += flat.numel()
        while _bytes > LIMIT_BYTES:
            old.append(_aside.popleft())
            _bytes -= old[-1][1].numel()
    for one in old:
        _check(*one)


def _check(operation: str, memory: torch.Tensor) -> None:
    touched = int((memory != PATTERN).sum())
    if touched:
        what = f"{touched} of {memory.numel()} bytes were written to after {operation} had ended"
        logger.critical(what)
        raise MemoryTouched(None, what, operation=operation)
