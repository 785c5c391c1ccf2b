"""Ctrl-C at a chosen step of the interpreter."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

#: the file in which a thread waits
WAITING = ("session/bridge.py",)
#: the file in which a message is started
STARTING = ("engine/engine.py",)

#: files in which a waiting thread exchanges a plain message
EXCHANGING = ("plain_messages.py", "engine/engine.py")
#: and the file in which it gives one up
GIVING_UP = ("giving_up.py",)


def interrupted_at(step: int, file: str | tuple[str, ...], call: Callable[[], Any]) -> bool:
    """Call it with ``KeyboardInterrupt`` raised at that step of the interpreter in ``file``, or one of several; False
    if it has fewer."""
    left = step

    def trace(frame: FrameType, event: str, _: Any) -> Any:
        nonlocal left
        if not frame.f_code.co_filename.endswith(file):
            return None
        frame.f_trace_opcodes = True
        if event == "opcode" and not _is_between_blocks(frame):
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        call()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(before)
    return False


def _is_between_blocks(frame: FrameType) -> bool:
    """Tell whether it enters or leaves a ``with``.

    CPython runs no signal handler between the last step of such a block and the call that leaves it. Here one would
    leave a lock held for ever.
    """
    line = frame.f_lineno  # None for some of what the compiler adds
    return line is None or linecache.getline(frame.f_code.co_filename, line).lstrip().startswith("with ")
