"""The package's wheel on any CPython from 3.10 on, without torch: prints the version of Python if it works.

A program of the standard library only, for environments that have the wheel and nothing else.
"""

from __future__ import annotations

import ctypes
import importlib
import platform
import socket
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

SECONDS = 30.0
DONE, OBJECT, LIMIT = 1, 2, 1 << 30


def joined(native: Any) -> tuple[Any, Any]:
    """Return two engines of this process, each the other's only peer."""
    ours, theirs = socket.socketpair()
    return native.Engine(0, {1: ours.detach()}, 1 << 20), native.Engine(1, {0: theirs.detach()}, 1 << 20)


def carried(sender: Any, receiver: Any, sent: bytes) -> bytes:
    """Send bytes from one engine to the other; both move data, each in a thread that waits."""
    taken = receiver.start((True, False, 0, 7, OBJECT, 0, LIMIT, None, None))
    given = sender.start((False, False, 1, 7, OBJECT, 0, len(sent), sent, None))
    other = threading.Thread(target=sender.wait, args=(given, SECONDS))
    other.start()
    assert receiver.wait(taken, SECONDS)[0] == DONE
    other.join()
    assert sender.outcome(given)[0] == DONE
    _keeper, _, (address, length) = receiver.received(taken)
    return ctypes.string_at(address, length)


def refused(kind: type[Exception], call: Any, *arguments: Any) -> bool:
    """Tell if a call raises: what it throws, often from within libstdc++, is caught in the engine."""
    try:
        call(*arguments)
    except kind:
        return True
    return False


def main() -> None:
    """Use all of the wheel that needs no torch."""
    native: Any = importlib.import_module("multiworld._engine")
    own = Path(native.__file__)
    assert own.name == "_engine.abi3.so", own
    assert Path(sys.prefix) in own.parents, own
    a, b = joined(native)
    for size in (0, 1, 5_000_000):
        sent = bytes(range(256)) * (size // 256) + bytes(size % 256)
        assert carried(a, b, sent) == sent, size
    assert refused(
        ValueError, a.start, (False, False, 5, 7, OBJECT, 0, 1, b"x", None)
    )  # no such peer: std::out_of_range
    with tempfile.TemporaryFile() as file:  # epoll takes none: std::system_error
        assert refused(PermissionError, native.Engine, 0, {1: file.fileno()}, 1 << 20)
    assert carried(a, b, b"after") == b"after"
    a.end(False)
    b.end(False)
    assert "torch" not in sys.modules
    sys.stdout.write(platform.python_version())


if __name__ == "__main__":
    main()
