"""A child process, with the time and memory it took."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from build.errors import ProbeError


@dataclass(frozen=True, slots=True)
class Cost:
    """What a process took.

    Attributes:
        seconds: from start to end.
        cpu: seconds of processor time, user and system, its own children included.
        peak: greatest resident set, bytes, of itself or the largest of its children.
        output: its standard output.
    """

    seconds: float
    cpu: float
    peak: int
    output: str


def cost(command: Sequence[str | Path], *, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Cost:
    """Run a command and return what it took.

    Args:
        command: program and arguments.
        env: all its variables, default those of this process.
        cwd: its folder, default the current one.

    Raises:
        ProbeError: it failed.
    """
    with tempfile.TemporaryFile() as out:
        began = time.perf_counter()
        process = subprocess.Popen(command, env=env, cwd=cwd, stdout=out, stderr=subprocess.STDOUT)
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:
            process.kill()
            raise
        seconds = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        output = out.read().decode("utf-8", "replace")
    if process.returncode:
        tail = "\n".join(output.splitlines()[-20:])
        raise ProbeError(f"{Path(command[0]).name} failed while being measured", cause=tail)
    return Cost(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, output)
