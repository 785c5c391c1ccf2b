"""SIGINT and SIGTERM: end once, and end even when the main thread sleeps in a lock."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType

#: Seconds between two attempts to wake the main thread: too short for a person to notice, and no load.
_AGAIN = 0.05
HANDLED = (signal.SIGINT, signal.SIGTERM)
#: Set by a parent to its own process id when its child is to end with it: see noxfile.py.
END_WITH = "MULTIWORLD_END_WITH_PARENT"
_PR_SET_PDEATHSIG = 1


class InterruptOnce:
    """Raises KeyboardInterrupt, once: nox and CI systems send more signals during the clean-up."""

    def __init__(self) -> None:
        # Not an Event: a second signal in the middle of `set` would wait for its lock forever.
        self.seen = False

    def __call__(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if not self.seen:
            self.seen = True
            raise KeyboardInterrupt


def handle() -> None:
    """Turn SIGINT and SIGTERM into a KeyboardInterrupt of the main thread, wherever that thread waits.

    Python runs a handler when its main thread runs next. A signal that comes between the last check of the flag and
    the wait for a lock, or that the kernel gives to another thread, does not interrupt the wait: the main thread
    sleeps on, until a compiler ends half an hour later. Therefore a thread reads each signal from the wakeup
    descriptor (which the C handler writes) and sends it to the main thread again until the handler has run.
    """
    handler = InterruptOnce()
    for number in HANDLED:
        signal.signal(number, handler)
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    main = threading.get_ident()
    threading.Thread(target=_repeat, args=(reader, handler, main), name="signals", daemon=True).start()
    _end_with_parent()


def _end_with_parent() -> None:
    """If the parent asked for it (`END_WITH`), get SIGTERM when the parent ends, however it ends.

    A SIGTERM to nox alone ends nox at once, and the build would go on unseen, with its locks. Only on request: a build
    that was started in the background goes on after its shell is closed.
    """
    # Removed from the environment: the children of this process have another parent.
    parent = os.environ.pop(END_WITH, "")
    if sys.platform != "linux" or not parent.isdecimal():
        return
    if os.getppid() == int(parent):
        # If the kernel or the C library refuses, the build outlives its parent.
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    # A parent that ended before the request sends nothing. If it lives, a process between it and this one has ended.
    if os.getppid() != int(parent) and not runs(int(parent)):
        signal.raise_signal(signal.SIGTERM)


def runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


@contextlib.contextmanager
def deferred_signals() -> Iterator[None]:
    """Deliver signals after the block; in other threads do nothing, since the main thread gets the signals.

    The handlers are replaced; blocked signals would stay blocked in a command that is started in the block.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = {number: signal.signal(number, lambda seen, _: came.append(seen)) for number in HANDLED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for first in came[:1]:
            signal.raise_signal(first)


def ignore() -> None:
    """Ignore signals, so that none changes the exit status: Python restores the default handlers when it exits."""
    for number in HANDLED:
        signal.signal(number, signal.SIG_IGN)


def _repeat(reader: int, handler: InterruptOnce, main: int) -> None:
    os.read(reader, 1)
    time.sleep(_AGAIN)
    while not handler.seen:
        signal.pthread_kill(main, signal.SIGINT)
        time.sleep(_AGAIN)
