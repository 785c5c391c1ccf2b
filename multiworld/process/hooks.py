"""Hooks for fork and interpreter exit, set when the first ``MultiWorld`` is made, not at import."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
import time
import weakref
from typing import Protocol

from multiworld.process.thread_parking import park
from multiworld.process.threads import blocked
from multiworld.transport import sockets
from multiworld.transport.descriptors import reserve

#: how long the exit waits in all: for worlds to be left, and for threads whose waits it has ended
ENDING_SECONDS = 3.0
#: what each world gets of that at least
LEAST_SECONDS = 0.05


class Owner(Protocol):
    """The worlds of a ``MultiWorld``."""

    def drop_in_child(self) -> None: ...
    def close(self, linger: float) -> None: ...


#: monotonic time by which everything of ours has ended when the process exits; None while it does not
_exit_by: float | None = None
_guard = threading.Lock()
_alive: weakref.WeakSet[Owner] = weakref.WeakSet()
_hooked = False


def register(owner: Owner) -> None:
    global _hooked
    with _guard:
        _alive.add(owner)
        if not _hooked:
            _hooked = True
            os.register_at_fork(
                before=sockets.before_fork, after_in_parent=sockets.after_fork_in_parent, after_in_child=_after_fork
            )
            atexit.register(_at_exit)


def _after_fork() -> None:
    """Close our copies of what peers see the end of the parent by."""
    sockets.after_fork_in_child()
    for owner in list(_alive):
        with contextlib.suppress(Exception):
            owner.drop_in_child()
    reserve.after_fork()


def _at_exit() -> None:
    """Leave every world that is still joined, pending operations or not, without waiting for any peer.

    Daemon threads that are in an operation or a join get their error now, and a moment to end: Python aborts if one of
    them is about to print its traceback, or in code of torch, when the interpreter ends. Threads of ours get the same
    moment: one that returns from C++ later would end the process. What does not end is stopped where it is.
    """
    global _exit_by
    _exit_by = until = time.monotonic() + ENDING_SECONDS
    waiting = blocked()
    for owner in list(_alive):
        with contextlib.suppress(Exception):
            owner.close(linger=0.2)
    for thread in _of_ours(waiting):
        thread.join(max(0.0, until - time.monotonic()))
    left = _of_ours(set())
    if left:
        with contextlib.suppress(Exception):
            park(left)


def patience(seconds: float) -> float:
    """Return how long to wait for something: ``seconds``, or the rest of the time when the process exits."""
    return seconds if _exit_by is None else min(seconds, max(LEAST_SECONDS, _exit_by - time.monotonic()))


def _of_ours(others: set[int]) -> list[threading.Thread]:
    """The threads of the package, and those of these idents; not the calling one, nor one that is being started."""
    here = threading.current_thread()
    ours = (thread for thread in threading.enumerate() if thread.name.startswith("mw-") or thread.ident in others)
    return [thread for thread in ours if thread is not here and thread.is_alive()]
