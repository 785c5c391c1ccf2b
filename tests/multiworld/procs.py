"""Worker processes for tests: ``multiworld.lab.workers`` with one forkserver for all tests of this process."""

from __future__ import annotations

import contextlib
import functools
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from multiworld.lab.context import Context as Link
from multiworld.lab.workers import DEADLINE, VanishedError, Worker, WorkerPool

__all__ = ["Cluster", "Link", "WorkerGone", "cluster", "process_state", "shared_pool", "wait_until"]

ROOT = Path(__file__).resolve().parents[2]
WorkerGone = VanishedError


@functools.cache
def shared_pool() -> WorkerPool:
    """The pool of this process; its workers write their errors where we do."""
    return WorkerPool(python_path=(str(ROOT), str(Path(__file__).parent)), preload=("pytest",))


class Cluster:
    """The workers of one test."""

    def __init__(self) -> None:
        self.procs: list[Worker] = []

    def start(self, function: Callable[..., Any], *args: Any) -> Worker:
        """Start ``function(link, *args)`` in a process of its own."""
        worker = shared_pool().run(function, *args)
        self.procs.append(worker)
        return worker

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
        shared_pool().dismiss(*made.procs)


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
