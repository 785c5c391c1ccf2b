"""The other end of `probes/main.py`: one process that has imported torch, from which every probe is forked."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from types import TracebackType

from build.errors import EnvironmentUnfitError
from gpuless.model import Probe

_PROGRAM = Path(__file__).resolve().parent / "probes" / "main.py"
_KEPT = ("PATH", "HOME", "LANG", "LC_ALL")  # nothing else of the caller's environment reaches a probe
# numpy's threads are started by its import; a process that is to be forked has none.
_ONE_THREAD = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


class ForkServer:
    """A process of the probed interpreter; leaving the context ends it and every probe that still runs.

    Args:
        python: the interpreter.
        environment: set for it, so for every probe.
    """

    def __init__(self, python: Path, environment: Mapping[str, str]) -> None:
        kept = {name: os.environ[name] for name in _KEPT if name in os.environ}
        self._errors = tempfile.TemporaryFile()
        self._process = subprocess.Popen(
            [python, "-I", _PROGRAM], env={**kept, **_ONE_THREAD, **environment}, cwd="/",
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, start_new_session=True,
        )  # fmt: skip
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._waiting: dict[int, Future[int | None]] = {}
        self._ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def __enter__(self) -> ForkServer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        assert self._process.stdin is not None  # noqa: S101 - it is a pipe
        self._process.stdin.close()
        self._reader.join()
        self._process.wait()
        self._errors.close()

    def run(self, probe: Probe, environment: Mapping[str, str], folder: Path) -> int | None:
        """Run a probe; return its exit status, None when it was killed at its deadline.

        Args:
            probe: which.
            environment: its own variables.
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
        except OSError:
            self._ended = True
        if self._ended:
            self._fail()

    def _read(self) -> None:
        """Hand the answers on until the server ends."""
        assert self._process.stdout is not None  # noqa: S101 - it is a pipe
        with self._process.stdout as answers:
            for line in answers:
                answer = json.loads(line)
                self._waiting.pop(answer["id"]).set_result(answer["status"])
        with self._lock:
            self._ended = True
            self._fail()

    def _fail(self) -> None:
        """Tell all that wait that nothing will come."""
        self._errors.seek(0)
        said = self._errors.read().decode("utf-8", "replace").strip()
        for number in list(self._waiting):
            self._waiting.pop(number).set_exception(
                EnvironmentUnfitError(
                    f"the probes have no process to start from: {self._process.args[0]} ended",  # type: ignore[index]
                    cause=said[-2000:] or "it said nothing",
                    remedy="see whether that interpreter can `import torch, torch.distributed`",
                )
            )
