"""The process that probes are forked from. It imports torch once: that import is most of a short probe's time.

Each packet on the socket whose descriptor it is given is a request (JSON: `program`, `arguments`, `environment`,
`folder`, `seconds`) with a socket that gets the exit status, null when the probe was killed at its deadline. A probe
writes `result`, `control` and `output` into its folder. When the requests end, every probe is killed.

A probe's environment is set after the fork. That is soon enough: PyTorch reads the variables of `ProcessGroupNCCL`
and of its flight recorder when the first process group is made, and the import makes none.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import resource
import runpy
import select
import signal
import socket
import sys
import tempfile
import time
import traceback
from pathlib import Path
from typing import Any

# -I left it out; nothing else of the repository can be imported
sys.path.insert(0, str(Path(__file__).resolve().parent))

gc.disable()  # what is loaded stays: looking through it is a quarter of the time that the import of torch takes
import fake  # noqa: E402
import world  # noqa: E402, F401 - imports torch

#: run by its path: the probed interpreter need not have the package
_HUGE_PAGES = Path(__file__).resolve().parents[2] / "multiworld" / "lab" / "huge_pages.py"


class Server:
    """Forks probes, ends those that are late, and tells how each one ended."""

    def __init__(self, requests: socket.socket) -> None:
        self.requests = requests
        self.deadlines: dict[int, tuple[socket.socket, float]] = {}  # by process: who waits, the time to kill it
        self.late: set[int] = set()
        self.woken, self.wake = os.pipe()
        os.set_blocking(self.wake, False)
        signal.set_wakeup_fd(self.wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

    def serve(self) -> None:
        """Serve requests until they end."""
        while True:
            ready, _, _ = select.select([self.woken, self.requests], [], [], self._patience())
            if self.requests in ready:
                request, descriptors, _, _ = socket.recv_fds(self.requests, 1 << 20, 1)
                if not request:
                    break
                self._start(json.loads(request), socket.socket(fileno=descriptors[0]))
            if self.woken in ready:
                os.read(self.woken, 4096)
            self._end_late()
            self._reap()
        for process in self.deadlines:
            os.killpg(process, signal.SIGKILL)

    def _patience(self) -> float | None:
        ends = [end for process, (_, end) in self.deadlines.items() if process not in self.late]
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    def _start(self, request: dict[str, Any], link: socket.socket) -> None:
        process = os.fork()
        with contextlib.suppress(OSError):  # both do it, since either may come first
            os.setpgid(process, process)
        if process == 0:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for descriptor in (self.woken, self.wake):
                os.close(descriptor)
            for other in (link, self.requests, *(one for one, _ in self.deadlines.values())):
                other.close()
            _probe(request)
        self.deadlines[process] = (link, time.monotonic() + request["seconds"])

    def _end_late(self) -> None:
        for process, (_, end) in self.deadlines.items():
            if end <= time.monotonic() and process not in self.late:
                self.late.add(process)
                os.killpg(process, signal.SIGKILL)

    def _reap(self) -> None:
        while self.deadlines:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                break
            link, _ = self.deadlines.pop(process)
            code = None if process in self.late else os.waitstatus_to_exitcode(status)
            self.late.discard(process)
            with link, contextlib.suppress(OSError):  # nobody waits any more
                link.sendall(json.dumps(code).encode() + b"\n")


def _probe(request: dict[str, Any]) -> None:
    """Run one probe in this process, a fresh fork, and leave without the interpreter's own shutdown.

    What the process group's destructors do is the business of the probes about them.
    """
    try:
        os.chdir(request["folder"])
        output = os.open("output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        for number, descriptor in enumerate((os.open(os.devnull, os.O_RDONLY), output, output)):
            os.dup2(descriptor, number)
        # Set variables; an empty value removes one, since PyTorch takes an empty one for a malformed number.
        for name, value in request["environment"].items():
            if value:
                os.environ[name] = value
            else:
                os.environ.pop(name, None)
        tempfile.tempdir = None  # determined again, from the probe's own TMPDIR
        fake.start("control")
        folder, _, program = request["program"].rpartition("/")
        if folder:
            sys.path.insert(0, folder)
        module, _, function = program.partition(".")
        outcome, detail = getattr(importlib.import_module(module), function or "run")(**request["arguments"])
    except BaseException as error:  # noqa: BLE001 - whatever a program dies of is for the runner to show
        outcome, detail = "BROKEN", {"error": repr(error), "traceback": traceback.format_exc()[-1500:]}
    part = Path("result.part")
    part.write_text(json.dumps({"outcome": outcome, "detail": detail}))
    part.rename("result")
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


gc.collect()
gc.freeze()
gc.enable()
runpy.run_path(str(_HUGE_PAGES))["collapse"]()
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a terminated probe is a result, not a crash to keep
Server(socket.socket(fileno=int(sys.argv[1]))).serve()
