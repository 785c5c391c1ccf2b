"""Programs as a person runs them, each in a process of its own: what they say is read line by line."""

from __future__ import annotations

import ast
import contextlib
import faulthandler
import multiprocessing.context
import os
import queue
import random
import re
import runpy
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from multiworld.lab.context import Context
from multiworld.lab.workers import VanishedError, WorkerPool

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


def _run(context: Context, output: str, arguments: list[str], environment: dict[str, str], cwd: str) -> int:
    """Fork a program, in a session of this process, and wait for its end; the exit status."""
    os.setsid()
    descriptor = os.open(output, os.O_WRONLY)
    if child := os.fork():
        os.close(descriptor)
        context.send(child)
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os.chdir(cwd)
    os.environ.update(environment)
    for number in (1, 2):
        os.dup2(descriptor, number)
    os.close(descriptor)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    faulthandler.enable()
    contexts: dict[str, Any] = vars(multiprocessing.context)["_concrete_contexts"]
    contexts["spawn"] = contexts["fork"]  # else its children would load torch
    sys.argv = arguments
    sys.path.insert(0, str(Path(arguments[0]).parent))
    runpy.run_path(arguments[0], run_name="__main__")
    return 0  # not looked at: a child ends as every program does


def own_loopback() -> str:
    """An address of the loopback interface that no other test uses: fixed ports are free there."""
    return "127.{}.{}.{}".format(*(random.SystemRandom().randrange(1, 255) for _ in range(3)))


class Program:
    """A running program.

    Args:
        pid: of the process that leads its session.
        process: the program's own, which may be another one.
        output: what it writes; closed by this object.
        ended: waits so many seconds for its end; the exit status.
    """

    def __init__(self, pid: int, process: int, output: TextIO, ended: Callable[[float], int]) -> None:
        self.pid, self.process = pid, process
        self.said: list[str] = []
        self._output, self._ended = output, ended
        self._lines: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @classmethod
    def begun(cls, arguments: list[str], environment: Mapping[str, str], python: Path, cwd: Path) -> Program:
        """Start ``python`` with ``arguments``, and with variables on top of ours."""
        process = subprocess.Popen(
            [python, *arguments],
            cwd=cwd,
            env={**ENVIRONMENT, **environment},
            start_new_session=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
        assert process.stdout is not None
        return cls(process.pid, process.pid, process.stdout, process.wait)

    @classmethod
    def forked(cls, pool: WorkerPool, arguments: list[str], environment: Mapping[str, str], cwd: Path) -> Program:
        """Run a script in a process forked from one that has loaded torch, which saves the seconds of its import."""
        ours, theirs = os.pipe()
        worker = pool.run(_run, f"/proc/{os.getpid()}/fd/{theirs}", arguments, {**ENVIRONMENT, **environment}, str(cwd))
        process = worker.recv()
        os.close(theirs)
        return cls(worker.pid, process, open(ours, errors="replace"), worker.result)  # noqa: PTH123 - of a descriptor

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
        return self._ended(SECONDS)

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
                if int(fields[3]) == self.pid:  # its session
                    ticks += sum(map(int, fields[11:15]))
        return ticks / os.sysconf("SC_CLK_TCK")

    def _threads(self) -> str:
        """Return what it said, then the stacks of its threads, which ``faulthandler`` writes when it is aborted."""
        os.killpg(self.pid, signal.SIGABRT)
        self._reader.join(SECONDS)
        return str(self)

    def kill(self) -> None:
        """Kill the program and whatever it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        with contextlib.suppress(VanishedError):  # a worker whose result was taken is gone
            self._ended(SECONDS)

    def __str__(self) -> str:
        return "\n".join(self.said)

    def _read(self) -> None:
        with self._output as stream:
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
    pool: WorkerPool | None = None,
) -> Iterator[list[Program]]:
    """Start programs at once; all are killed in the end.

    Args:
        commands: arguments of Python for each.
        environment: variables on top of ours.
        python: the interpreter.
        apart: whether NCCL takes each for a host of its own.
        cwd: the folder that they run in.
        pool: forks them, if given, instead of ``python``.
    """
    programs: list[Program] = []
    try:
        for number, command in enumerate(commands):
            own = {**environment, **({"NCCL_HOSTID": f"host-{number}"} if apart else {})}
            made = Program.begun(command, own, python, cwd) if pool is None else Program.forked(pool, command, own, cwd)
            programs.append(made)
        yield programs
    finally:
        for program in programs:
            program.kill()
