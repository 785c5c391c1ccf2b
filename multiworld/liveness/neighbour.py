"""A peer process on this very machine can be looked at: starved is not stopped.

On an overloaded machine a process may not get to answer a ping for a second although nothing is wrong with it. Where
the kernel can be asked (same boot, same namespaces of processes and network), a silent peer is given more time, but
only while there is evidence that the thread that answers wants to run: it waits for a CPU or for its memory to be
swapped in, or it has run since it was last looked at. A stopped or frozen thread does none of these, and neither does
one that is asleep because no ping reaches it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from multiworld.liveness.freezer import frozen
from multiworld.liveness.pulse import THREAD_NAME

#: a silent neighbour that wants to run is lost after this many times the usual patience all the same
PATIENCE = 10.0
_STOPPED = "TtZXx"


@dataclass(frozen=True, slots=True)
class ProcessId:
    """A process, beyond doubt.

    Attributes:
        machine: this boot of this machine, and the namespace that ``pid`` is a number in.
        pid: process number.
        started: when it started, in clock ticks since boot; tells it from a later one of the same number.
    """

    machine: str
    pid: int
    started: int

    def running(self) -> bool | None:
        """Whether it exists and is neither stopped nor frozen; None if that cannot be known from here."""
        if self.machine != machine():
            return None
        fields = _stat(Path(f"/proc/{self.pid}"))
        if fields is None or fields[0] in _STOPPED or int(fields[19]) != self.started:
            return False
        return not frozen(self.pid)


@dataclass(frozen=True, slots=True)
class _Sample:
    """What the kernel says of a thread.

    Attributes:
        state: its letter; R waits for a CPU or has one, D waits for a disk or is frozen.
        progress: grows whenever it runs, waits for a CPU or has memory swapped in.
    """

    state: str
    progress: tuple[int, int, int]


class Starvation:
    """Looks at a silent process again and again: is there evidence that it would answer if it could?

    Args:
        process: which one.
    """

    def __init__(self, process: ProcessId) -> None:
        self._process = process
        self._last = _sample(process.pid) if process.running() else None

    def evident(self) -> bool:
        """Whether the thread that answers wants to run now, or did since we last looked."""
        last, self._last = self._last, None
        if not self._process.running():
            return False
        now = self._last = _sample(self._process.pid)
        if now is None:
            return False
        moved = last is not None and now.progress != last.progress
        # D without progress may be the freezer's, where its state cannot be read: no evidence then.
        return moved or now.state == "R" or (now.state == "D" and frozen(self._process.pid) is False)


def machine() -> str:
    """What is the same for processes that can look at each other in ``/proc``, and for no others."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # Of two network namespaces the wire between them may be cut, which is no overload.
        spaces = (str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in ("pid", "net"))
        return " ".join((boot, *spaces))
    except OSError:
        return f"unknown {os.urandom(8).hex()}"


def this_process() -> ProcessId:
    """We, as others may know us."""
    fields = _stat(Path(f"/proc/{os.getpid()}"))
    return ProcessId(machine(), os.getpid(), int(fields[19]) if fields else 0)


def _sample(pid: int) -> _Sample | None:
    """The thread of ``pid`` that answers pings; None if it cannot be seen."""
    task = _responder(pid)
    fields = _stat(task) if task is not None else None
    if task is None or fields is None:
        return None
    try:
        ran, waited, _ = map(int, (task / "schedstat").read_text().split())
    except (OSError, ValueError):  # a kernel without it
        ran, waited = int(fields[11]) + int(fields[12]), 0
    return _Sample(fields[0], (ran, waited, int(fields[9])))


def _responder(pid: int) -> Path | None:
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            if (task / "comm").read_text().strip() == THREAD_NAME:
                return task
    except OSError:  # it ends just now
        pass
    return None


def _stat(folder: Path) -> list[str] | None:
    """The fields of a ``stat`` file after the name: state, then as numbered in proc(5) less 3, such as 9 for major
    faults, 11 and 12 for time on the CPU, 19 for the start."""
    try:
        return (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
