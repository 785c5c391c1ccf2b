"""Programs that run in earnest on the imitation: torch's process group and NVIDIA's bindings, two processes each."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from gpuless.control import read_control
from gpuless.subject import Subject

_HERE = Path(__file__).parent
_SECONDS = 120


def _run_pair(
    subject: Subject, program: str, argument: Path, environment: Mapping[str, str], misused: int = 0
) -> list[dict[str, Any]]:
    """Run a program as ranks 0 and 1, each misusing that many handles; return what they print."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    both: list[subprocess.Popen[str]] = []
    for rank in range(2):
        command: list[str | Path] = [subject.python, "-I", _HERE / program, str(rank), argument]
        everything = {**kept, **environment}
        both.append(
            subprocess.Popen(command, env=everything, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        )
    try:
        said = [process.communicate(timeout=_SECONDS) for process in both]
    finally:
        for process in both:
            process.kill()
    assert [process.returncode for process in both] == [0, 0], "\n".join(errors[-3000:] for _, errors in said)
    controls = [read_control(Path(environment["GPULESS_CONTROL"]) / str(process.pid)) for process in both]
    for control in controls:
        assert control is not None
        assert (control.misused, control.communicators) == (misused, 0), control
    return [json.loads(out.splitlines()[-1]) for out, _ in said]


def test_nvidias_bindings(subject: Subject, imitated: dict[str, str], tmp_path: Path) -> None:
    ask: list[str | Path] = [subject.python, "-I", "-c", "import nccl.bindings.nccl"]
    missing = subprocess.run(
        ask, capture_output=True, text=True, timeout=_SECONDS, check=False, env={**os.environ, **imitated}
    )
    if missing.returncode:
        pytest.skip(f"nccl4py cannot be imported by {subject.python}: {missing.stderr.strip().splitlines()[-1]}")
    answers = _run_pair(subject, "bindings.py", tmp_path / "id", imitated, misused=1)
    for rank, seen in enumerate(answers):
        refusal = seen.pop("after the end")
        assert "invalid argument" in refusal.lower(), refusal
        if seen["version"] >= 22800:
            code, refusal = seen.pop("revoked")
            assert (code, "invalid usage" in refusal.lower()) == (0, True), refusal
        else:
            assert "ncclCommRevoke" in seen.pop("revoke")
        assert seen == {
            "version": subject.nccl_version,
            "created": 0,
            "place": [rank, 2],
            "launched": 0,
            "received": [2.0 - rank, 3.0 - rank],
            "launched again": 0,
            "reduced": [3.0, 5.0],
            "split": [0, 1 - rank],
            "finalized": 0,
        }


def test_the_process_group_of_torch(subject: Subject, imitated: dict[str, str], tmp_path: Path) -> None:
    answers = _run_pair(subject, "group.py", tmp_path / "store", imitated)
    for rank, seen in enumerate(answers):
        assert seen == {
            "reduced": [3.0, 3.0],
            "gathered": [[0.0], [1.0]],
            "exchanged": [1.0 - rank],
            "halves": [3.0],
            "broadcast": [7.0],
            "barrier": "passed",
            "second group": [3.0],
        }


_CRASH = """
import ctypes, faulthandler, time
faulthandler.enable(all_threads=False)
libc = ctypes.CDLL(None)
libc.pthread_create(ctypes.byref(ctypes.c_ulong()), None, libc.strlen, None)
time.sleep(60)
"""


def test_a_crash_in_a_thread_of_c_shows_where(subject: Subject, imitated: dict[str, str]) -> None:
    command: list[str | Path] = [subject.python, "-I", "-c", _CRASH]
    done = subprocess.run(
        command, env={**os.environ, **imitated}, capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    assert done.returncode == -signal.SIGSEGV, done.stderr
    assert "[gpuless] signal 11 in thread 'python" in done.stderr
    assert re.search(r"libc\.so\.6", done.stderr.partition("native stack:")[2]), done.stderr
