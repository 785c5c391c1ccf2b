"""The outside of worker processes: a pool starts them, calls functions in them and waits for what they report.

    with WorkerPool() as pool:
        one = pool.run(work, store, 0)             # a process for ``work(context, store, 0)`` alone
        assert one.recv() == "joined"              # what it gave to ``context.send``
        other = pool.worker("other")               # a process with an event loop that runs one function after the other
        call = other.start(acts.join, "w", 1, 2)

Every wait has a deadline. What a worker raises is raised, with its traceback, where its result is waited for.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from multiworld.lab.context import SAID, Call, Cancel, Mark, Outcome, Tell, packed

DEADLINE = 60.0
_START_SECONDS = 120.0
_FORKSERVER = "multiworld.lab.forkserver"
# One thread each: workers are many, cores are few, and a forkserver must have no other thread when it forks.
_ENVIRONMENT = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
# torch prints the stack of every refused connection, and workers are here to provoke that.
_ENVIRONMENT["TORCH_CPP_LOG_LEVEL"] = "FATAL"


class OverdueError(AssertionError, TimeoutError):
    """A worker did not answer in time; its stacks are in the pool's log."""


class VanishedError(AssertionError):
    """A worker ended while an answer was waited for."""


class RemoteTraceback(Exception):
    """The traceback of an error in a worker, as the cause of the error."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


class Running:
    """A call under way in a worker."""

    def __init__(self, worker: Worker, number: int) -> None:
        self._worker = worker
        self.number = number

    def outcome(self, timeout: float = DEADLINE) -> Outcome:
        """Return how it ended; ``OverdueError`` after ``timeout`` seconds."""
        return self._worker.outcome_of(self.number, timeout)

    def result(self, timeout: float = DEADLINE) -> Any:
        outcome = self.outcome(timeout)
        if outcome.error is not None:
            raise outcome.error from RemoteTraceback(outcome.trace)
        return outcome.value

    def cancel(self) -> None:
        self._worker.post(Cancel(self.number))


class Worker:
    """A worker process. Once it is reaped, the kernel may give its ``pid`` to another one. Its channel is closed if it
    is ``gone``."""

    def __init__(self, pool: WorkerPool, name: str, pid: int, channel: Connection) -> None:
        self.pool = pool
        self.name = name
        self.pid = pid
        self.code: int | None = None
        self._channel = channel
        self._numbers = itertools.count(1)
        self._latest = 0
        self._outcomes: dict[int, Outcome] = {}
        self._marks: list[Mark] = []
        self.gone = False

    def start(self, function: Callable[..., Any], *args: Any, main: bool = False) -> Running:
        number = self._latest = next(self._numbers)
        self.post(Call(number, function, args, main))
        return Running(self, number)

    def run(self, function: Callable[..., Any], *args: Any, timeout: float = DEADLINE) -> Any:
        return self.start(function, *args).result(timeout)

    def post(self, message: Call | Cancel | Tell) -> None:
        data = packed(message)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # the wait for its answer reports it
            self._channel.send_bytes(data)

    def send(self, value: Any) -> None:
        self.post(Tell(value))

    def recv(self, timeout: float = DEADLINE) -> Any:
        """Return the next value of ``Context.send``; raises what the latest call raised instead of sending."""
        return self.wait_for(SAID, timeout).value

    def result(self, timeout: float = DEADLINE) -> Any:
        """Return the result of the latest call; raises what it raised."""
        return Running(self, self._latest).result(timeout)

    def wait_for(self, mark: str, timeout: float = DEADLINE) -> Mark:
        """The first mark of that name not asked for yet; raises what the latest call raised instead of coming there."""
        found: Mark = self._wait(lambda: self._marked(mark), f"mark {mark!r}", timeout)
        self._marks.remove(found)
        return found

    def marks(self, name: str) -> list[Mark]:
        """All marks of that name that are here now; they are not given again."""
        while not self.gone and self._channel.poll():
            self._read(0)
        found = [mark for mark in self._marks if mark.name == name]
        self._marks = [mark for mark in self._marks if mark.name != name]
        return found

    def outcome_of(self, number: int, timeout: float) -> Outcome:
        found: Outcome = self._wait(lambda: self._outcomes.pop(number, None), f"call {number}", timeout)
        return found

    def exit_code(self, timeout: float = DEADLINE) -> int:
        return self.pool.exit_code(self, timeout)

    def signal(self, number: int) -> None:
        """Send a signal. After SIGSTOP, this returns when the process is stopped."""
        os.kill(self.pid, number)
        if number == signal.SIGSTOP:
            stat, deadline = Path(f"/proc/{self.pid}/stat"), time.monotonic() + 5
            # the kernel offers no event to a process that is not the parent
            while stat.read_text().rpartition(")")[2].split()[0] not in "Tt":
                if time.monotonic() > deadline:
                    raise OverdueError(f"worker {self.name} (pid {self.pid}) did not stop")
                time.sleep(0.001)

    def kill(self) -> None:
        """Send SIGKILL, and wait until the process is gone."""
        os.kill(self.pid, signal.SIGKILL)
        if (code := self.exit_code(10.0)) != -signal.SIGKILL:
            raise VanishedError(f"worker {self.name} (pid {self.pid}) had ended with {code}")

    def close(self) -> None:
        self._channel.close()

    def _marked(self, name: str) -> Mark | None:
        mark = next((mark for mark in self._marks if mark.name == name), None)
        latest = self._outcomes.get(self._latest)
        if mark is None and latest is not None and latest.error is not None:
            raise latest.error from RemoteTraceback(latest.trace)
        return mark

    def _wait(self, look: Callable[[], Any], what: str, timeout: float) -> Any:
        deadline = time.monotonic() + timeout
        while (found := look()) is None:
            left = deadline - time.monotonic()
            if self.gone:
                raise VanishedError(f"worker {self.name} (pid {self.pid}) ended with {self.exit_code()} before {what}")
            if left <= 0:
                self._complain(what, timeout)
            self._read(left)
        return found

    def _complain(self, what: str, timeout: float) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)
            time.sleep(0.2)  # it has no way to say that its stacks are written
        raise OverdueError(f"worker {self.name} (pid {self.pid}): no {what} within {timeout} s; log: {self.pool.log}")

    def _read(self, timeout: float) -> None:
        if not self._channel.poll(max(0.0, timeout)):
            return
        try:
            message: Mark | Outcome = self._channel.recv()
        except (EOFError, ConnectionResetError):
            self.gone = True
            return
        if isinstance(message, Mark):
            self._marks.append(message)
        else:
            self._outcomes[message.number] = message


class WorkerPool(contextlib.AbstractContextManager["WorkerPool"]):
    """A forkserver and its workers.

    Args:
        log: file for the standard error of all workers; None for that of this process.
        python_path: folders with the modules that the functions come from.
        preload: modules that the forkserver imports, so that no worker needs to.
        python: the interpreter of the workers; another one than ours finds its own packages and ``python_path``.
        environment: variables of the workers, on top of ours.
    """

    def __init__(
        self,
        log: Path | None = None,
        python_path: tuple[str, ...] = (),
        preload: Iterable[str] = (),
        python: str = sys.executable,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.log = log
        self.workers: list[Worker] = []
        self._numbers = itertools.count(1)
        self._asking = threading.Lock()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = os.pathsep.join([*python_path, *(filter(None, sys.path) if python == sys.executable else ())])
        with contextlib.ExitStack() as stack:
            stderr = stack.enter_context(log.open("ab")) if log is not None else None
            streams: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": stderr, "stderr": stderr}
            command = [python, "-m", _FORKSERVER, str(theirs.fileno()), *preload]
            env = {**os.environ, **_ENVIRONMENT, **(environment or {}), "PYTHONPATH": path}
            streams |= {"pass_fds": [theirs.fileno()], "start_new_session": True}
            self._forkserver = subprocess.Popen(command, env=env, **streams)
        theirs.close()
        self._control.settimeout(_START_SECONDS)
        if not self._control.recv(16):
            raise VanishedError(f"the forkserver did not start: {log and log.read_text(errors='replace')[-2000:]}")

    def worker(self, name: str = "") -> Worker:
        ours, theirs = Pipe()
        name = name or f"worker-{next(self._numbers)}"
        with theirs:
            answer = self._ask({"do": "spawn", "name": name}, theirs)
        worker = Worker(self, name, answer["pid"], ours)
        self.workers.append(worker)
        return worker

    def run(self, function: Callable[..., Any], *args: Any) -> Worker:
        """Start a worker for ``function(context, *args)`` alone: in its main thread, without an event loop."""
        worker = self.worker()
        worker.start(function, *args, main=True)
        return worker

    def exit_code(self, worker: Worker, timeout: float) -> int:
        """Wait until ``worker`` has ended, and reap it: its exit code, negative for a signal."""
        if worker.code is None:
            descriptor = os.pidfd_open(worker.pid)
            try:
                if not select.select([descriptor], [], [], timeout)[0]:
                    raise OverdueError(f"worker {worker.name} (pid {worker.pid}) is alive after {timeout} s")
            finally:
                os.close(descriptor)
            worker.code = int(self._ask({"do": "status", "pid": worker.pid})["status"])
        return worker.code

    def dismiss(self, *workers: Worker) -> None:
        """End those of ``workers`` that live, and reap them."""
        for worker in workers:
            if worker.code is None:
                os.kill(worker.pid, signal.SIGKILL)
        for worker in workers:
            self.exit_code(worker, 10.0)
            worker.close()
            if worker in self.workers:
                self.workers.remove(worker)

    def dismiss_all(self) -> None:
        self.dismiss(*self.workers)

    def close(self) -> None:
        self.dismiss_all()
        self._control.close()
        self._forkserver.wait(timeout=10)

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, request: dict[str, Any], channel: Connection | None = None) -> dict[str, Any]:
        descriptors = [] if channel is None else [channel.fileno()]
        with self._asking:
            socket.send_fds(self._control, [json.dumps(request).encode()], descriptors)
            answer: dict[str, Any] = json.loads(self._control.recv(1024))
        return answer


@contextlib.contextmanager
def log_folder(purpose: str) -> Iterator[Path]:
    """A temporary folder that stays only if the block fails: the errors of workers name their log in it."""
    folder = Path(tempfile.mkdtemp(prefix=f"multiworld-{purpose}-"))
    try:
        yield folder
    except Exception:
        raise
    except BaseException:  # an interruption names no log
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)
