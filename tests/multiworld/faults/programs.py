"""Programs as a person runs them, each in a process of its own: what they say is read line by line."""

from __future__ import annotations

import ast
import contextlib
import os
import queue
import random
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
ENVIRONMENT = {
    **os.environ,
    "PYTHONPATH": str(ROOT),
    "OMP_NUM_THREADS": "1",
    "PYTHONUNBUFFERED": "1",
    "PYTHONFAULTHANDLER": "1",
}
#: how long a program may say nothing while it does nothing. On a busy machine it loads torch for minutes, and that is
#: no fault of its: it has used the processor meanwhile
SECONDS = 120
#: seconds of the processor that are more than a program takes that only waits, heartbeats included
WORKED = 3.0


def documented_commands(program: str) -> list[list[str]]:
    """The commands in the docstring of an example, without their first word, which is ``python``."""
    text = ast.get_docstring(ast.parse((ROOT / program).read_text(encoding="utf-8"))) or ""
    found = [shlex.split(line)[1:] for line in text.splitlines() if line.startswith(f"    python {program}")]
    assert found, f"the docstring of {program} has no command"
    return found


def own_loopback() -> str:
    """An address of the loopback interface that no other test uses: fixed ports are free there."""
    return "127.{}.{}.{}".format(*(random.SystemRandom().randrange(1, 255) for _ in range(3)))


class Program:
    """A running program.

    Args:
        arguments: of the Python interpreter.
        environment: variables to set on top of ours.
        python: the interpreter.
        cwd: where it runs.
    """

    def __init__(
        self,
        arguments: list[str],
        environment: Mapping[str, str],
        python: Path = Path(sys.executable),
        cwd: Path = ROOT,
    ) -> None:
        self.process = subprocess.Popen(
            [python, *arguments], cwd=cwd, env={**ENVIRONMENT, **environment}, start_new_session=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
        )  # fmt: skip
        self.said: list[str] = []
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def until(self, pattern: str, *, anywhere: bool = False) -> re.Match[str]:
        """Wait for the next line with ``pattern``; fails if the program ends before, or does nothing for ``SECONDS``.

        With ``anywhere``, a line that was read before counts, too: for what two processes say in any order.
        """
        if anywhere and (found := re.search(pattern, str(self))):
            return found
        while (line := self._next(pattern)) is not None:
            if found := re.search(pattern, line):
                return found
        raise AssertionError(f"ended before it said: {pattern}\n{self}")

    def end(self) -> int:
        """Wait for the end; the exit status. Fails if the program does nothing for ``SECONDS`` instead."""
        while self._next("its end") is not None:
            pass
        self.process.wait(SECONDS)
        return self.process.returncode

    def _next(self, awaited: str) -> str | None:
        """The next line; None at the end, whose mark stays."""
        deadline, used = time.monotonic() + SECONDS, self._used()
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                if (now := self._used()) - used < WORKED:
                    raise AssertionError(f"silent and idle for {SECONDS} s: {awaited}\n{self._threads()}") from None
                deadline, used = time.monotonic() + SECONDS, now
                continue
            if line is None:
                self._lines.put(None)
            return line

    def _used(self) -> float:
        """Seconds of the processor that the program and what it started have used."""
        ticks = 0
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = path.read_text(errors="replace").rpartition(")")[2].split()
                if int(fields[3]) == self.process.pid:  # its session
                    ticks += sum(map(int, fields[11:15]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def _threads(self) -> str:
        """What it said, and then the stacks of its threads, which ``faulthandler`` writes when it is aborted."""
        self.process.send_signal(signal.SIGABRT)
        self._reader.join(SECONDS)
        return str(self)

    def kill(self) -> None:
        """Kill the program and whatever it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(SECONDS)

    def __str__(self) -> str:
        return "\n".join(self.said)

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as stream:
            for line in stream:
                self.said.append(line.rstrip("\n"))
                self._lines.put(line)
        self._lines.put(None)


@contextlib.contextmanager
def started(
    commands: list[list[str]],
    environment: Mapping[str, str],
    python: Path = Path(sys.executable),
    *,
    apart: bool = False,
    cwd: Path = ROOT,
) -> Iterator[list[Program]]:
    """Start programs at once; all are killed in the end. With ``apart``, NCCL takes each for a host of its own."""
    programs: list[Program] = []
    try:
        for number, command in enumerate(commands):
            own = {"NCCL_HOSTID": f"host-{number}"} if apart else {}
            programs.append(Program(command, {**environment, **own}, python, cwd))
        yield programs
    finally:
        for program in programs:
            program.kill()
