"""The watchdog cleans up after an operation whose thread has ended."""

from __future__ import annotations

import ctypes
import threading

import fake
from breakage import answer
from world import World, wrapped

_M_PERTURB = -6  # of mallopt(3)


def run() -> tuple[str, dict[str, object]]:
    """Enqueue an operation in a thread, let the thread end, then the operation.

    Freed memory is overwritten, so that its use shows each time.
    """
    world = World()
    world.run("all_reduce")
    ctypes.CDLL(None).mallopt(_M_PERTURB, 0x5A)
    fake.inject("ncclAllReduce", fake.HOLD)
    thread = threading.Thread(target=world.start, args=("all_reduce",))
    thread.start()
    thread.join()
    fake.lift("ncclAllReduce")
    cleaned_up = answer(wrapped(world.group)._wait_for_pending_works)
    return {"returned": "OK", "no answer": "STALLED"}.get(cleaned_up, "BROKEN"), {"cleaned up": cleaned_up}
