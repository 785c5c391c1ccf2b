"""Ctrl-C and an end from outside: leave once, and leave even when the signal finds the main thread asleep."""

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

#: Seconds between two attempts to wake the main thread: a person does not notice it, a busy machine neither.
_AGAIN = 0.05
HANDLED = (signal.SIGINT, signal.SIGTERM)
#: The id of the process with which this one is to end, set by that one for its child: see noxfile.py.
END_WITH = "MULTIWORLD_END_WITH_PARENT"
_PR_SET_PDEATHSIG = 1


class InterruptOnce:
    """Raises KeyboardInterrupt, once: nox and CI systems send more signals while the first is cleaned up after."""

    def __init__(self) -> None:
        # Not an Event: a second signal in the middle of `set` would wait for its lock without end.
        self.seen = False

    def __call__(self, signum: int, frame: FrameType | None) -> None:  # noqa: ARG002
        if not self.seen:
            self.seen = True
            raise KeyboardInterrupt


def handle() -> None:
    """Make SIGINT and SIGTERM a KeyboardInterrupt of the main thread, wherever that thread waits.

    Python runs a handler when its main thread runs next. A signal that comes between the last look at the flag and
    the wait for a lock, or that the kernel gives to another thread, interrupts no wait: the flag is set and the main
    thread sleeps on, until a compiler ends half an hour later. Therefore a thread is told of each signal through the
    wakeup descriptor (which the C handler writes, whatever Python does) and sends it to the main thread again until
    the handler has run.

    Raises:
        ValueError: called outside the main thread.
    """
    handler = InterruptOnce()
    for number in HANDLED:
        signal.signal(number, handler)
    told, tell = os.pipe()
    os.set_blocking(tell, False)
    signal.set_wakeup_fd(tell, warn_on_full_buffer=False)
    main = threading.get_ident()
    threading.Thread(target=_repeat, args=(told, handler, main), name="signals", daemon=True).start()
    _end_with_parent()


def _end_with_parent() -> None:
    """Where the parent has asked for it, get SIGTERM when it ends, however it does.

    A SIGTERM to nox alone ends nox at once, and the build would go on, unseen and holding its locks. But only where it
    was asked for: who starts a build in the background and closes the shell wants it to go on.
    """
    # Taken out: what this process starts has another parent.
    parent = os.environ.pop(END_WITH, "")
    if sys.platform != "linux" or not parent.isdecimal():
        return
    if os.getppid() == int(parent):
        # Where the kernel or the C library refuses, the build goes on as it always did.
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
    # Asked for too late, it does not come. A parent that lives is not ours: another process is in between.
    if os.getppid() != int(parent) and not runs(int(parent)):
        signal.raise_signal(signal.SIGTERM)


def runs(process: int) -> bool:
    """Whether there is a process of this id."""
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True


@contextlib.contextmanager
def deferred_signals() -> Iterator[None]:
    """Keep signals of the main thread back until the block has ended; elsewhere they come to the main thread anyway.

    Handlers are exchanged and signals not blocked: a command started meanwhile would inherit the mask.
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
    """Let no signal change the exit status: at its end Python sets handlers back to those that kill."""
    for number in HANDLED:
        signal.signal(number, signal.SIG_IGN)


def _repeat(told: int, handler: InterruptOnce, main: int) -> None:
    """Send the main thread its first signal again until it was seen."""
    os.read(told, 1)
    time.sleep(_AGAIN)
    while not handler.seen:
        signal.pthread_kill(main, signal.SIGINT)
        time.sleep(_AGAIN)
