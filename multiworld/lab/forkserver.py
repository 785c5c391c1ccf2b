"""A process that has loaded torch and forks workers on request, so that a fresh worker costs milliseconds, not seconds.

``WorkerPool`` starts it as ``python -m multiworld.lab.forkserver FD MODULE...``. It has one thread and no
state but its children. It ends when its pool does, and its children end with it.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import os
import signal
import socket
import sys
import threading
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def _spawn(control: socket.socket, channel: int) -> int | None:
    """Fork; the child's channel in the child, None in the parent."""
    parent = os.getpid()
    child = os.fork()
    if child == 0:
        control.close()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        return channel
    os.close(channel)
    control.send(json.dumps({"pid": child}).encode())
    return None


def _status(pid: int) -> int | None:
    """Reap ``pid`` if it has ended: its exit code, negative for a signal."""
    try:
        done, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        return None
    return os.waitstatus_to_exitcode(status) if done else None


def serve(control: socket.socket) -> tuple[int, str] | None:
    """Answer requests until the pool is gone (None), or until we are a new worker (its channel and name)."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(control, 65536, 1)
        if not data:
            return None
        request = json.loads(data)
        if request["do"] == "status":
            control.send(json.dumps({"status": _status(request["pid"])}).encode())
            continue
        channel = _spawn(control, descriptors[0])
        if channel is not None:
            return channel, request["name"]


def main() -> None:
    gc.disable()  # what is loaded stays: looking through it is a quarter of the time that the import of torch takes
    import encodings.idna  # noqa: F401 - the first look-up of a host would import it

    import torch.distributed  # noqa: F401 - loaded for the children, as the others

    import multiworld.worlds.multi_world  # noqa: F401
    from multiworld.lab import context, huge_pages

    for module in sys.argv[2:]:
        importlib.import_module(module)
    if threading.active_count() > 1 or len(list(Path("/proc/self/task").iterdir())) > 1:
        sys.exit("the forkserver must have one thread: something that was imported has started another")
    gc.collect()
    gc.freeze()
    gc.enable()
    huge_pages.collapse()
    control = socket.socket(fileno=int(sys.argv[1]))
    control.send(b"{}")
    role = serve(control)
    if role is None:
        os._exit(0)  # nothing here needs an orderly end
    context.main(*role)


if __name__ == "__main__":
    main()
