"""Protection of threads inside a C++ call at exit, and of C++ objects whose destructor would wait.

Up to Python 3.13, the stack of a thread that comes back from C++ is unwound while the interpreter ends. C++ code on
that stack ends the process over it: status 134, after the program was done. A thread that does not come back does no
harm: the process ends with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import signal
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

#: a thread that was not scheduled for this long waits for something; one that waits for the GIL wakes every 5 ms
LOOK_SECONDS = 0.03


def immortal(thing: Any) -> None:
    """Never destroy ``thing``: in a forked child its threads do not exist, and its destructor would wait for them."""
    if thing is not None:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


class _SigAction(ctypes.Structure):
    """``struct sigaction`` of the C library on Linux, with a mask of 1024 signals."""

    _fields_ = (
        ("handler", ctypes.c_void_p),
        ("mask", ctypes.c_ulong * (1024 // (8 * ctypes.sizeof(ctypes.c_ulong)))),
        ("flags", ctypes.c_int),
        ("restorer", ctypes.c_void_p),
    )


def park(threads: Iterable[threading.Thread]) -> list[threading.Thread]:
    """Stop those of ``threads`` that wait, for good, and return them; only while the process exits. A thread that runs
    is left alone: it may hold a lock that the exit needs."""
    before = {thread: _switches(thread) for thread in threads}
    time.sleep(LOOK_SECONDS)  # without the GIL, so that a thread that waits only for that goes on
    waiting = [thread for thread, count in before.items() if count is not None and _switches(thread) == count]
    numbers = range(signal.SIGRTMAX - 1, signal.SIGRTMIN, -1)
    number = next((number for number in numbers if signal.getsignal(number) is signal.SIG_DFL), None)  # a free one
    if not waiting or number is None or not _pause_on(number):
        return []
    for thread in waiting:
        with contextlib.suppress(OSError):  # it has ended just now
            signal.pthread_kill(thread.ident or 0, number)
    return waiting


def _switches(thread: threading.Thread) -> str | None:
    """Return how often the thread was scheduled away; None if it is gone, or the kernel does not count that."""
    try:
        status = Path(f"/proc/self/task/{thread.native_id}/status").read_text()
    except OSError:
        return None
    return " ".join(line for line in status.splitlines() if "ctxt_switches" in line) or None


def _pause_on(number: int) -> bool:
    """Make the signal's handler pause for good, with all other signals blocked."""
    libc = ctypes.CDLL(None)
    action = _SigAction(handler=ctypes.cast(libc.pause, ctypes.c_void_p).value)
    libc.sigfillset(ctypes.byref(action, _SigAction.mask.offset))
    return bool(libc.sigaction(number, ctypes.byref(action), None) == 0)
