"""What the process does to us: it forks, and it exits. Hooks are set when the first ``MultiWorld`` is made, not at
import."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import threading
import time
import weakref
from typing import TYPE_CHECKING, Any

from multiworld.net.descriptors import reserve

if TYPE_CHECKING:
    from multiworld.multi import MultiWorld

#: how long threads whose waits were ended by the exit may take to end themselves
ENDING_SECONDS = 1.0

_guard = threading.Lock()
_alive: weakref.WeakSet[MultiWorld] = weakref.WeakSet()
_hooked = False


def register(owner: MultiWorld) -> None:
    """Look after ``owner`` when the process forks or exits."""
    global _hooked
    with _guard:
        _alive.add(owner)
        if not _hooked:
            _hooked = True
            os.register_at_fork(after_in_child=_after_fork)
            atexit.register(_at_exit)


def _after_fork() -> None:
    """Close our copies of connections, so that peers see the end of the parent; the parent's own stay as they are."""
    for owner in list(_alive):
        with contextlib.suppress(Exception):
            owner.drop_in_child()
    reserve.after_fork()


def _at_exit() -> None:
    """Leave every world that is still joined, pending operations or not, without waiting for any peer.

    Daemon threads that waited for an operation get ``WorldClosed`` now, and a moment to end: Python aborts if one of
    them is about to print its traceback when the interpreter goes.
    """
    waiting: set[int] = set()
    for owner in list(_alive):
        with contextlib.suppress(Exception):
            waiting |= owner.waiting_threads()
            owner.shut(linger=0.2)
    until = time.monotonic() + ENDING_SECONDS
    for thread in threading.enumerate():
        if thread.ident in waiting and thread is not threading.current_thread():
            thread.join(max(0.0, until - time.monotonic()))


def immortal(thing: Any) -> None:
    """Never destroy ``thing``: in a forked child its threads do not exist, and its destructor would wait for them."""
    if thing is not None:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))
