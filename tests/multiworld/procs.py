"""Real processes for tests: started in milliseconds, spoken to over a pipe, gone at the end whatever happened.

    def worker(link, store, rank):
        with MultiWorld() as mw:
            w = mw.sync.join("w", rank, 2, store=store)
            link.send("joined")
            ...
            return value

    with cluster() as c:
        a, b = c.start(worker, store, 0), c.start(worker, store, 1)
        assert a.recv() == "joined"
        b.signal(signal.SIGSTOP)
        assert a.result() == value

A worker is a function of a test module. Every wait has a deadline; a worker's exception is raised, with its
traceback, where the test waits for it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

DEADLINE = 30.0

# A fork of a server that has torch loaded but has started no thread: a worker in milliseconds.
_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload(["torch", "torch.distributed", "pytest", "pytest.__main__", "multiworld.multi"])


class WorkerFailed(AssertionError):  # noqa: N818 - says what it is
    """The worker raised; the text is its traceback."""


class WorkerGone(AssertionError):  # noqa: N818 - says what it is
    """The worker ended without a word."""


class Link:
    """A worker's end of the pipe."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    def send(self, value: Any) -> None:
        """Say something picklable to the test."""
        self._pipe.send(("said", value))

    def recv(self, timeout: float = DEADLINE) -> Any:
        """What the test says; raises TimeoutError after ``timeout`` seconds."""
        if not self._pipe.poll(timeout):
            raise TimeoutError(f"the test said nothing within {timeout} s")
        return self._pipe.recv()


def _main(pipe: Connection, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    link = Link(pipe)
    try:
        outcome: tuple[str, Any] = ("returned", function(link, *args))
    except BaseException:  # noqa: BLE001 - whatever it is, the test is told
        outcome = ("raised", traceback.format_exc())
    with contextlib.suppress(OSError):
        pipe.send(outcome)


class Proc:
    """A worker process, as the test sees it."""

    def __init__(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        self._pipe, theirs = _context.Pipe()
        self.process = _context.Process(target=_main, args=(theirs, function, args), daemon=True)
        self.process.start()
        theirs.close()

    @property
    def pid(self) -> int:
        """Its process number."""
        pid = self.process.pid
        assert pid is not None
        return pid

    def send(self, value: Any) -> None:
        """Say something to the worker."""
        self._pipe.send(value)

    def recv(self, timeout: float = DEADLINE) -> Any:
        """What the worker says next."""
        kind, value = self._next(timeout)
        assert kind == "said", f"the worker returned {value!r}, expected it to say something"
        return value

    def result(self, timeout: float = DEADLINE) -> Any:
        """What the worker returns; what it still says before is dropped."""
        deadline = time.monotonic() + timeout
        while True:
            kind, value = self._next(max(0.0, deadline - time.monotonic()))
            if kind == "returned":
                return value

    def signal(self, number: int) -> None:
        """Send a signal. After SIGSTOP, returns when the process really is stopped."""
        os.kill(self.pid, number)
        if number == signal.SIGSTOP:
            wait_until(lambda: process_state(self.pid) in "Tt", 5.0, "the process did not stop")

    def kill(self) -> None:
        """SIGKILL, and wait until it is gone."""
        os.kill(self.pid, signal.SIGKILL)
        self.process.join(5)
        assert self.process.exitcode == -signal.SIGKILL

    def exit_code(self, timeout: float = DEADLINE) -> int:
        """Its exit status, once it has ended."""
        self.process.join(timeout)
        assert self.process.exitcode is not None, f"still running after {timeout} s"
        return self.process.exitcode

    def _next(self, timeout: float) -> tuple[str, Any]:
        if not self._pipe.poll(timeout):
            raise TimeoutError(f"worker {self.pid} said nothing within {timeout} s (state {process_state(self.pid)})")
        try:
            kind, value = self._pipe.recv()
        except (EOFError, ConnectionResetError):
            self.process.join(5)
            raise WorkerGone(f"worker {self.pid} ended with {self.process.exitcode}") from None
        if kind == "raised":
            raise WorkerFailed(f"worker {self.pid} failed:\n{value}")
        return kind, value


class Cluster:
    """The workers of one test."""

    def __init__(self) -> None:
        self.procs: list[Proc] = []

    def start(self, function: Callable[..., Any], *args: Any) -> Proc:
        """Start ``function(link, *args)`` in a process of its own."""
        proc = Proc(function, args)
        self.procs.append(proc)
        return proc

    def results(self, timeout: float = DEADLINE) -> list[Any]:
        """What all workers return, in the order they were started."""
        deadline = time.monotonic() + timeout
        return [proc.result(max(0.0, deadline - time.monotonic())) for proc in self.procs]


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """Workers that are gone when the block ends, stopped ones too."""
    made = Cluster()
    try:
        yield made
    finally:
        for proc in made.procs:
            if proc.process.exitcode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(proc.pid, signal.SIGCONT)
                    os.kill(proc.pid, signal.SIGKILL)
        for proc in made.procs:
            proc.process.join(5)
            proc._pipe.close()
            assert proc.process.exitcode is not None, f"worker {proc.pid} is left over"


def process_state(pid: int) -> str:
    """The state letter of a process, as in ``/proc/<pid>/stat``; X if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def wait_until(condition: Callable[[], bool], timeout: float, message: str) -> None:
    """Return when ``condition()`` is true; fail with ``message`` after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, message
        time.sleep(0.002)
