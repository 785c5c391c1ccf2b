"""The conductor's side: starts actors, calls functions in them, waits for what they report."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from multiworld.chaos.actor import LENGTH
from multiworld.chaos.messages import Call, Cancel, Mark, Outcome

_START_SECONDS = 120.0
# One thread each: actors are many, cores are few, and a zygote must have no other thread when it forks.
_ENVIRONMENT = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
# torch prints the stack of every refused connection, which is what a cast is made to provoke.
_ENVIRONMENT["TORCH_CPP_LOG_LEVEL"] = "FATAL"


class OverdueError(AssertionError):
    """An actor did not answer in time; its stacks are in the cast's log."""


class VanishedError(AssertionError):
    """An actor ended while an answer was waited for."""


class Running:
    """A call under way in an actor."""

    def __init__(self, actor: Actor, number: int) -> None:
        self._actor = actor
        self.number = number

    def outcome(self, timeout: float = 20.0) -> Outcome:
        """How it ended; ``OverdueError`` after ``timeout`` seconds."""
        return self._actor.outcome_of(self.number, timeout)

    def result(self, timeout: float = 20.0) -> Any:
        """What it returned; raises what it raised."""
        outcome = self.outcome(timeout)
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    def cancel(self) -> None:
        """Cancel its task."""
        self._actor.send(Cancel(self.number))


class Actor:
    """A worker process.

    Attributes:
        name: for messages.
        pid: of the process; the kernel may give it to another one once this one is reaped.
        code: its exit code once it is reaped.
    """

    def __init__(self, cast: Cast, name: str, pid: int, channel: socket.socket) -> None:
        self.cast = cast
        self.name = name
        self.pid = pid
        self.code: int | None = None
        self._channel = channel
        self._numbers = itertools.count(1)
        self._latest = 0
        self._outcomes: dict[int, Outcome] = {}
        self._marks: list[Mark] = []
        self._input = bytearray()
        self._gone = False

    def start(self, function: Callable[..., Any], *args: Any) -> Running:
        """Start ``function(stage, *args)`` in the actor."""
        number = self._latest = next(self._numbers)
        self.send(Call(number, function, args))
        return Running(self, number)

    def run(self, function: Callable[..., Any], *args: Any, timeout: float = 20.0) -> Any:
        """Run ``function(stage, *args)`` in the actor and return its result."""
        return self.start(function, *args).result(timeout)

    def send(self, message: Call | Cancel) -> None:
        """Send a message to the actor."""
        data = pickle.dumps(message)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # waiting for its answer will say so
            self._channel.sendall(LENGTH.pack(len(data)) + data)

    def wait_for(self, mark: str, timeout: float = 20.0) -> Mark:
        """The first mark of that name not asked for yet; raises what the latest call raised instead of coming there."""
        found: Mark = self._wait(lambda: self._marked(mark), f"mark {mark!r}", timeout)
        self._marks.remove(found)
        return found

    @property
    def gone(self) -> bool:
        """Whether its channel was found closed."""
        return self._gone

    def marks(self, name: str) -> list[Mark]:
        """All marks of that name that are here now; they are not given again."""
        while not self._gone and select.select([self._channel], [], [], 0)[0]:
            self._read(0)
        found = [mark for mark in self._marks if mark.name == name]
        self._marks = [mark for mark in self._marks if mark.name != name]
        return found

    def outcome_of(self, number: int, timeout: float) -> Outcome:
        """The outcome of a call."""
        found: Outcome = self._wait(lambda: self._outcomes.pop(number, None), f"call {number}", timeout)
        return found

    def exit_code(self, timeout: float = 10.0) -> int:
        """Wait until the process has ended and is reaped: its exit code, negative for a signal."""
        return self.cast.exit_code(self, timeout)

    def close(self) -> None:
        """Let the actor end by itself."""
        self._channel.close()

    def _marked(self, name: str) -> Mark | None:
        mark = next((mark for mark in self._marks if mark.name == name), None)
        latest = self._outcomes.get(self._latest)
        if mark is None and latest is not None and latest.error is not None:
            raise latest.error
        return mark

    def _wait(self, look: Callable[[], Any], what: str, timeout: float) -> Any:
        deadline = time.monotonic() + timeout
        while (found := look()) is None:
            left = deadline - time.monotonic()
            if self._gone:
                raise VanishedError(f"actor {self.name} (pid {self.pid}) ended before {what}")
            if left <= 0:
                self._complain(what, timeout)
            self._read(left)
        return found

    def _complain(self, what: str, timeout: float) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGUSR1)
            time.sleep(0.2)  # it has no way to say that its stacks are written
        raise OverdueError(f"actor {self.name} (pid {self.pid}): no {what} within {timeout} s; log: {self.cast.log}")

    def _read(self, timeout: float) -> None:
        ready, _, _ = select.select([self._channel], [], [], max(0.0, timeout))
        if not ready:
            return
        try:
            data = self._channel.recv(1 << 20)
        except ConnectionResetError:
            data = b""
        self._gone = not data
        self._input += data
        while len(self._input) >= LENGTH.size:
            (length,) = LENGTH.unpack_from(self._input)
            end = LENGTH.size + length
            if len(self._input) < end:
                break
            self._take(pickle.loads(bytes(self._input[LENGTH.size : end])))  # noqa: S301 - from our own actor
            del self._input[:end]

    def _take(self, message: Mark | Outcome) -> None:
        if isinstance(message, Mark):
            self._marks.append(message)
        else:
            self._outcomes[message.number] = message


class Cast:
    """A zygote and its actors.

    Args:
        log: file that the standard error of all actors goes to.
        python_path: folders with the modules that the functions come from.
    """

    def __init__(self, log: Path, python_path: tuple[str, ...] = ()) -> None:
        self.log = log
        self.actors: list[Actor] = []
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        path = os.pathsep.join([*python_path, *filter(None, sys.path)])
        with log.open("ab") as stderr:
            self._zygote = subprocess.Popen(
                [sys.executable, "-m", "multiworld.chaos.zygote", str(theirs.fileno())],
                pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, stdout=stderr, stderr=stderr,
                env={**os.environ, **_ENVIRONMENT, "PYTHONPATH": path}, start_new_session=True,
            )  # fmt: skip
        theirs.close()
        self._control = ours
        self._control.settimeout(_START_SECONDS)
        if not self._control.recv(16):
            raise VanishedError(f"the cast did not start: {log.read_text(errors='replace')[-2000:]}")

    def actor(self, name: str, network: str = "", env: Mapping[str, str] | None = None) -> Actor:
        """Start an actor.

        Args:
            name: for messages.
            network: network namespace that it lives in; empty for ours.
            env: environment variables of its own.
        """
        ours, theirs = socket.socketpair()
        request = {"do": "spawn", "name": name, "network": network, "env": dict(env or {})}
        socket.send_fds(self._control, [json.dumps(request).encode()], [theirs.fileno()])
        theirs.close()
        pid = json.loads(self._control.recv(1024))["pid"]
        actor = Actor(self, name, pid, ours)
        self.actors.append(actor)
        return actor

    def exit_code(self, actor: Actor, timeout: float) -> int:
        """Wait until ``actor`` has ended, reap it, and return its exit code."""
        if actor.code is None:
            descriptor = os.pidfd_open(actor.pid)
            try:
                if not select.select([descriptor], [], [], timeout)[0]:
                    raise OverdueError(f"actor {actor.name} (pid {actor.pid}) is alive after {timeout} s")
            finally:
                os.close(descriptor)
            self._control.send(json.dumps({"do": "status", "pid": actor.pid}).encode())
            actor.code = int(json.loads(self._control.recv(1024))["status"])
        return actor.code

    def dismiss(self, actor: Actor) -> None:
        """End ``actor`` if it lives, and reap it."""
        if actor.code is None:
            os.kill(actor.pid, signal.SIGKILL)
            self.exit_code(actor, 10.0)
        actor.close()
        if actor in self.actors:
            self.actors.remove(actor)

    def dismiss_all(self) -> None:
        """End all actors."""
        for actor in tuple(self.actors):
            self.dismiss(actor)

    def close(self) -> None:
        """End all actors and the zygote."""
        self.dismiss_all()
        self._control.close()
        self._zygote.wait(timeout=10)

    def __enter__(self) -> Cast:  # noqa: PYI034 - typing.Self is not in 3.10
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
