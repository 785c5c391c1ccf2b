"""Worker processes for tests: ``multiworld.lab.workers`` with one forkserver for all tests of this process."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from multiworld.lab.context import Context
from multiworld.lab.workers import DEADLINE, Worker, WorkerPool

ROOT = Path(__file__).resolve().parents[2]


#: what the modules of the tests import, and each worker would import anew
PRELOAD = ("pytest", "typer.testing", "tests.multiworld.faults.network", "tests.multiworld.faults.scene")


@functools.cache
def shared_pool() -> WorkerPool:
    """The pool of this process."""
    log = Path(tempfile.mkdtemp(prefix="workers-"), "log")
    here = [name for name in PRELOAD if importlib.util.find_spec(name.partition(".")[0])]
    return WorkerPool(log, (str(ROOT), str(Path(__file__).parent)), here)


@contextlib.contextmanager
def log_shown(pool: WorkerPool) -> Iterator[None]:
    """Show what its workers have written meanwhile, if the block fails."""
    assert pool.log is not None
    start = pool.log.stat().st_size
    try:
        yield
    except BaseException:
        with pool.log.open("rb") as log:
            log.seek(start)
            sys.stderr.write(log.read().decode(errors="replace")[-20_000:])
        raise


class Cluster:
    """The workers of one test."""

    def __init__(self) -> None:
        self.procs: list[Worker] = []

    def start(self, function: Callable[..., Any], *args: Any) -> Worker:
        """Start ``function(context, *args)`` in a process of its own."""
        worker = shared_pool().run(function, *args)
        self.procs.append(worker)
        return worker

    def results(self, timeout: float = DEADLINE) -> list[Any]:
        """Return the results of all workers, in the order they were started."""
        deadline = time.monotonic() + timeout
        return [proc.result(max(0.0, deadline - time.monotonic())) for proc in self.procs]


@contextlib.contextmanager
def cluster() -> Iterator[Cluster]:
    """Workers that are gone when the block ends, stopped ones too."""
    made = Cluster()
    try:
        with log_shown(shared_pool()):
            yield made
    finally:
        shared_pool().dismiss(*made.procs)


@dataclass(frozen=True)
class Done:
    """The end of a program."""

    status: int
    stdout: str
    stderr: str


def program(text: str, *args: str) -> Done:
    """Run a Python program of its own, as a user would, to its very end; torch is loaded already."""
    with tempfile.TemporaryDirectory() as folder, cluster() as c:
        status = c.start(_program, text, args, folder).result(90)
        return Done(status, *(Path(folder, name).read_text() for name in ("1", "2")))


def _program(context: Context, text: str, args: tuple[str, ...], folder: str) -> int:
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    for number in (1, 2):
        os.dup2(os.open(f"{folder}/{number}", os.O_WRONLY | os.O_CREAT), number)
    sys.argv = ["-c", *args]
    exec(compile(text, "<program>", "exec"), {"__name__": "__main__"})  # noqa: S102 - of a test
    return 0  # what a child returns is not looked at: it ends as every program does


def process_state(pid: int) -> str:
    """The state letter of a process, as in ``/proc/<pid>/stat``; X if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return "X"


def open_links() -> list[str]:
    """Return what our descriptors refer to, such as ``socket:[123]``; other threads may close some meanwhile."""
    found = []
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names, not paths
        with contextlib.suppress(FileNotFoundError):
            found.append(os.readlink(f"/proc/self/fd/{name}"))  # noqa: PTH115 - text
    return found


def open_numbers() -> list[int]:
    """The numbers of the open descriptors; where they cannot be listed for lack of one, all that may be open."""
    try:
        return [int(name) for name in os.listdir("/proc/self/fd")]  # noqa: PTH208 - names are wanted, not paths
    except OSError:
        return list(range(max(4096, resource.getrlimit(resource.RLIMIT_NOFILE)[0])))


def wait_until(condition: Callable[[], bool], timeout: float, message: str) -> None:
    """Return when ``condition()`` is true; fail with ``message`` after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, message
        time.sleep(0.002)
