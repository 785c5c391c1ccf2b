"""The client of `probes/main.py`: one process that has imported torch, and forks every probe."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from build.errors import EnvironmentUnfitError
from gpuless.model import Probe

_PROGRAM = Path(__file__).resolve().parent / "probes" / "main.py"
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL")  # a probe gets these variables of the caller's environment
# The import of numpy starts threads; a process that forks must not have any.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True, slots=True)
class ForkServer:
    """A process of the probed interpreter that forks probes; see `fork_server`."""

    process: subprocess.Popen[bytes]
    errors: IO[bytes]
    requests: socket.socket

    def end(self) -> None:
        with contextlib.suppress(OSError):
            self.requests.shutdown(socket.SHUT_RDWR)
        self.process.wait()

    def run(self, probe: Probe, environment: Mapping[str, str], folder: Path) -> int | None:
        """Run a probe; return its exit status, None when it was killed at its deadline.

        Args:
            environment: variables of this probe.
            folder: gets `result`, `control` and `output`.

        Raises:
            EnvironmentUnfitError: the server has ended: torch cannot be imported.
        """
        request = {
            "program": probe.program,
            "arguments": dict(probe.args),
            "environment": dict(environment),
            "folder": str(folder),
            "seconds": probe.timeout,
        }
        line, (link, theirs) = b"", socket.socketpair()
        with contextlib.suppress(OSError), link, link.makefile("rb") as answer:
            with theirs:
                socket.send_fds(self.requests, [json.dumps(request).encode()], [theirs.fileno()])
            line = answer.readline()
        if not line:
            said = os.pread(self.errors.fileno(), 1 << 20, 0).decode("utf-8", "replace").strip()
            what, remedy = "the server that starts the probes has ended", "check that `import torch.distributed` works"
            raise EnvironmentUnfitError(what, cause=said[-2000:] or "it printed nothing", remedy=remedy)
        status: int | None = json.loads(line)
        return status


@contextlib.contextmanager
def fork_server(python: Path, environment: Mapping[str, str]) -> Iterator[ForkServer]:
    """Start a fork server; leaving the context ends it and every probe that still runs.

    Args:
        python: the probed interpreter.
        environment: variables of the server, and so of every probe.
    """
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with tempfile.TemporaryFile() as errors, requests:
        with theirs:
            process = subprocess.Popen(
                [python, "-I", _PROGRAM, str(theirs.fileno())],
                env={**kept, **_ONE_THREAD, **environment},
                cwd="/",
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=errors,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        server = ForkServer(process, errors, requests)
        try:
            yield server
        finally:
            server.end()
