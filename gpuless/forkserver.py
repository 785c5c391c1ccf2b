"""The client of `probes/main.py`: one process that has imported torch, and forks every probe."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import IO

from build.errors import EnvironmentUnfitError
from gpuless.model import Probe

_PROGRAM = Path(__file__).resolve().parent / "probes" / "main.py"
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL")  # a probe gets these variables of the caller's environment
# The import of numpy starts threads; a process that forks must not have any.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


class ForkServer:
    """A process of the probed interpreter that forks probes; see `fork_server`."""

    def __init__(self, process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
        self._process, self._errors = process, errors
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: dict[int, Future[int | None]] = {}
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def end(self) -> None:
        """End the server and every probe that still runs."""
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        with self._lock, contextlib.suppress(OSError):
            self._process.stdin.close()
        self._reader.join()
        self._process.wait()

    def run(self, probe: Probe, environment: Mapping[str, str], folder: Path) -> int | None:
        """Run a probe; return its exit status, None when it was killed at its deadline.

        Args:
            environment: variables of this probe.
            folder: gets `result`, `control` and `output`.

        Raises:
            EnvironmentUnfitError: the server has ended: torch cannot be imported.
        """
        answer: Future[int | None] = Future()
        request = {
            "program": probe.program,
            "arguments": dict(probe.args),
            "environment": dict(environment),
            "folder": str(folder),
            "seconds": probe.timeout,
        }
        with self._lock:
            number = next(self._numbers)
            self._waiting[number] = answer
            self._send(json.dumps({"id": number, **request}))
        return answer.result()

    def _send(self, line: str) -> None:
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        try:
            self._process.stdin.write(line.encode() + b"\n")
            self._process.stdin.flush()
        except (OSError, ValueError):  # the server has ended
            self._ended = True
        if self._ended:
            self._fail()

    def _read(self) -> None:
        """Pass answers on until the server ends."""
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        with self._process.stdout as answers:
            for line in answers:
                answer = json.loads(line)
                if waiting := self._waiting.pop(answer["id"], None):
                    waiting.set_result(answer["status"])
        with self._lock:
            self._ended = True
            self._fail()

    def _fail(self) -> None:
        """Fail all waiting probes."""
        self._errors.seek(0)
        said = self._errors.read().decode("utf-8", "replace").strip()
        for number in list(self._waiting):
            self._waiting.pop(number).set_exception(
                EnvironmentUnfitError(
                    "the server that starts the probes has ended",
                    cause=said[-2000:] or "it printed nothing",
                    remedy="check that this interpreter can `import torch, torch.distributed`",
                )
            )


@contextlib.contextmanager
def fork_server(python: Path, environment: Mapping[str, str]) -> Iterator[ForkServer]:
    """Start a fork server; leaving the context ends it and every probe that still runs.

    Args:
        python: the probed interpreter.
        environment: variables of the server, and so of every probe.
    """
    kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            [python, "-I", _PROGRAM],
            env={**kept, **_ONE_THREAD, **environment},
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            start_new_session=True,
        )
        server = ForkServer(process, errors)
        try:
            yield server
        finally:
            server.end()
