"""Pause the collector of cycles: a port makes none, and has many objects that it would go through again and again."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """Do not search for cycles in the block, in no thread."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            _settle()
            gc.enable()


def _settle() -> None:
    """Count what the block has made as old, without a look at it: else the next search would begin with all of it."""
    if not gc.get_freeze_count():  # what others froze stays frozen
        gc.freeze()
        gc.unfreeze()
