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
    address: str

    def end(self) -> None:
        assert self.process.stdin is not None  # noqa: S101 - it is a pipe
        with contextlib.suppress(OSError):
            self.process.stdin.close()
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
        line = b""
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as link, link.makefile("rb") as answers:
            link.connect(self.address)
            link.sendall(json.dumps(request).encode() + b"\n")
            line = answers.readline()
        if not line:
            said = os.pread(self.errors.fileno(), 1 << 20, 0).decode("utf-8", "replace").strip()
            what, remedy = "the server that starts the probes has ended", "check that `import torch.distributed` works"
            raise EnvironmentUnfitError(what, cause=said[-2000:] or "it printed nothing", remedy=remedy)
        status: int | None = json.loads(line)
        return status


@contextlib.contextmanager
def _address() -> Iterator[str]:
    """Yield an address for a socket of this process, in a folder of this user's alone.

    It names the folder by a descriptor: addresses have at most 107 bytes, and the path of the folder may be longer.
    """
    with tempfile.TemporaryDirectory(prefix="gpuless-") as folder:
        descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY)
        try:
            yield f"/proc/self/fd/{descriptor}/link"
        finally:
            os.close(descriptor)


@contextlib.contextmanager
def fork_server(python: Path, environment: Mapping[str, str]) -> Iterator[ForkServer]:
    """Start a fork server; leaving the context ends it and every probe that still runs.

    Args:
        python: the probed interpreter.
        environment: variables of the server, and so of every probe.
    """
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    with tempfile.TemporaryFile() as errors, _address() as address:
        # Who connects before the server has imported torch waits; only the server keeps the socket open.
        with socket.create_server(address, family=socket.AF_UNIX, backlog=4096) as listening:
            process = subprocess.Popen(
                [python, "-I", _PROGRAM, str(listening.fileno())],
                env={**kept, **_ONE_THREAD, **environment},
                cwd="/",
                stdin=subprocess.PIPE,
                stdout=errors,
                stderr=errors,
                pass_fds=[listening.fileno()],
                start_new_session=True,
            )
        server = ForkServer(process, errors, address)
        try:
            yield server
        finally:
            server.end()
