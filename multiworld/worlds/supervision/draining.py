"""SIGTERM, as a cluster sends it before it kills a process."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType


def at_sigterm(drain: Callable[[], bool]) -> Callable[[], bool]:
    """Call ``drain`` at the first SIGTERM, and then the handler that was there. Only the main thread can set a handler:
    elsewhere nothing is done.

    Args:
        drain: returns whether there is something to drain; then the default, which ends the process, is left out.

    Returns:
        The function that puts the handler of before back; it tells whether it did.
    """
    before = signal.getsignal(signal.SIGTERM)
    if threading.current_thread() is not threading.main_thread() or before is None:  # None: it was not set in Python
        return lambda: False

    def handle(number: int, frame: FrameType | None) -> None:
        restored, drained = restore(), drain()  # a second one means what it meant before
        if callable(before):
            before(number, frame)
        elif restored and not drained:
            signal.raise_signal(number)

    def restore() -> bool:
        ours = signal.getsignal(signal.SIGTERM) is handle
        if ours and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)
            return True
        return False

    signal.signal(signal.SIGTERM, handle)
    return restore
