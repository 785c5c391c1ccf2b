"""Faults that are proven: each method returns when the fault can be seen from outside, and says how it was seen."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from multiworld.lab.workers import Worker

_PROOF_SECONDS = 5.0
_PTRACE_SEIZE, _PTRACE_INTERRUPT, _PTRACE_DETACH = 0x4206, 0x4207, 17


@dataclass(frozen=True, slots=True)
class Fired:
    """A fault that has happened.

    Attributes:
        fault: which one.
        target: whom it hit.
        at: monotonic time just before it was done.
        proof: what was seen.
    """

    fault: str
    target: str
    at: float
    proof: str


class NotFiredError(AssertionError):
    """A fault that was meant to happen did not."""


def thread_states(pid: int) -> dict[int, str]:
    """State letter of each thread of ``pid``, as the kernel tells: R, S, D, T (stopped), t (traced), Z."""
    states = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            states[int(task.name)] = (task / "stat").read_text().rpartition(")")[2].split()[0]
    return states


def proven(seen: Callable[[], str | None], what: str) -> str:
    """Wait until ``seen`` returns a proof; ``NotFiredError`` if it does not within five seconds."""
    deadline = time.monotonic() + _PROOF_SECONDS
    while (proof := seen()) is None:
        if time.monotonic() > deadline:
            raise NotFiredError(f"{what} was not seen within {_PROOF_SECONDS} s")
        time.sleep(0.001)  # the kernel offers no event for this
    return proof


class Injector:
    """Makes faults and keeps the list of those that were proven.

    Attributes:
        fired: all of them, in order.
    """

    def __init__(self) -> None:
        self.fired: list[Fired] = []

    def record(self, fault: str, target: str, at: float, proof: str) -> Fired:
        """Add a fault that was proven elsewhere."""
        fired = Fired(fault, target, at, proof)
        self.fired.append(fired)
        return fired

    def kill(self, worker: Worker, number: int = signal.SIGKILL) -> Fired:
        """Kill ``worker`` with a signal; it is reaped when this returns."""
        at = time.monotonic()
        os.kill(worker.pid, number)
        code = worker.exit_code()
        if code != -number:
            raise NotFiredError(f"{worker.name} ended with {code}, not by signal {number}")
        return self.record("kill", worker.name, at, f"pid {worker.pid} reaped with {code}")

    def died(self, worker: Worker, fault: str, at: float, code: int) -> Fired:
        """Record that ``worker`` ended by itself with ``code``, as it was told to."""
        got = worker.exit_code()
        if got != code:
            raise NotFiredError(f"{worker.name} ended with {got}, not {code}")
        return self.record(fault, worker.name, at, f"pid {worker.pid} reaped with {got}")

    def freeze(self, worker: Worker) -> Fired:
        """Stop all threads of ``worker`` (SIGSTOP)."""
        at = time.monotonic()
        os.kill(worker.pid, signal.SIGSTOP)
        proof = proven(lambda: _all_in(worker.pid, "T"), f"the stop of {worker.name}")
        return self.record("freeze", worker.name, at, proof)

    def thaw(self, worker: Worker) -> Fired:
        """Let a stopped ``worker`` go on (SIGCONT)."""
        at = time.monotonic()
        os.kill(worker.pid, signal.SIGCONT)
        proof = proven(lambda: None if "T" in thread_states(worker.pid).values() else "no thread stopped", "the thaw")
        return self.record("thaw", worker.name, at, proof)

    @contextlib.contextmanager
    def group_frozen(self, worker: Worker, group: Path, version: int) -> Iterator[Fired]:
        """Freeze ``worker`` by its control group, as ``docker pause`` does; it goes on at the end of the block.

        Args:
            worker: whom.
            group: folder of a control group without members; it is made, and removed in the end.
            version: of control groups: 1 (a group of the freezer's hierarchy) or 2.
        """
        file, on, off = ("freezer.state", "FROZEN", "THAWED") if version == 1 else ("cgroup.freeze", "1", "0")
        home = _group_of(worker.pid, group, version)
        group.mkdir()
        try:
            (group / "cgroup.procs").write_text(str(worker.pid))
            at = time.monotonic()
            (group / file).write_text(on)
            proof = proven(lambda: _group_state(group, version), f"the freeze of {worker.name}")
            yield self.record("freeze group", worker.name, at, proof)
        finally:
            (group / file).write_text(off)
            with contextlib.suppress(ProcessLookupError):
                (home / "cgroup.procs").write_text(str(worker.pid))
            group.rmdir()

    @contextlib.contextmanager
    def thread_frozen(self, worker: Worker, tid: int) -> Iterator[Fired]:
        """Stop one thread of ``worker``, by its kernel id, as a debugger does; it goes on at the end of the block."""
        at = time.monotonic()
        _ptrace(_PTRACE_SEIZE, tid)
        try:
            _ptrace(_PTRACE_INTERRUPT, tid)
            proof = proven(lambda: _traced(worker.pid, tid), f"the stop of thread {tid}")
            yield self.record("freeze thread", f"{worker.name}/{tid}", at, proof)
        finally:
            _ptrace(_PTRACE_DETACH, tid)


def _group_of(pid: int, sibling: Path, version: int) -> Path:
    """The control group that ``pid`` is in, in the hierarchy that ``sibling`` is directly below the root of."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if (version == 2 and number == "0") or (version == 1 and "freezer" in controllers.split(",")):
            return sibling.parent / path.lstrip("/")
    return sibling.parent


def _group_state(group: Path, version: int) -> str | None:
    if version == 1:
        state = (group / "freezer.state").read_text().strip()
        return f"{group}: freezer.state {state}" if state == "FROZEN" else None
    events = (group / "cgroup.events").read_text().split()
    return f"{group}: cgroup.events frozen 1" if events[events.index("frozen") + 1] == "1" else None


def _all_in(pid: int, letter: str) -> str | None:
    states = set(thread_states(pid).values())
    return f"all threads of {pid} in state {letter}" if states == {letter} else None


def _traced(pid: int, tid: int) -> str | None:
    states = thread_states(pid)
    others = {state for task, state in states.items() if task != tid}
    return f"thread {tid} in state t, others {sorted(others)}" if states.get(tid) == "t" and "t" not in others else None


def _ptrace(request: int, tid: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    libc.ptrace.restype = ctypes.c_long
    if libc.ptrace(request, tid, None, None) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), f"ptrace of thread {tid}")
