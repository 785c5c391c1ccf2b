"""A peer process on this very machine can be looked at: starved is not stopped.

On an overloaded machine a healthy process may not get to answer a ping for a second. Where the kernel can be asked
(same boot, same namespaces of processes and network), a silent peer may get more time. It does only while there is
evidence that the thread that answers wants to run. Such a thread waits for a CPU or for its memory to be swapped in, or
has run since the last look. A stopped or frozen thread does none of these, and neither does one that sleeps because
pings do not reach it.

The kernel shows a process that is frozen (``docker pause``, ``systemctl freeze``, a batch system's suspend) as asleep,
as it shows an idle one. Its control group shows the difference, in version 1 (``freezer.state``) and version 2
(``cgroup.events``), where the file system of control groups can be read.
"""

from __future__ import annotations

import contextlib
import enum
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TypeAlias

from multiworld.liveness.pulse import THREAD_NAME

#: a silent neighbour that wants to run is lost only after this many times the usual time
PATIENCE = 10.0
_STOPPED, _ENDED = "Tt", "ZXx"


class Presence(enum.Enum):
    """What is seen of a process, or of a member in it."""

    HERE = "here"
    STILL = "still"  #: stopped, frozen or cut off: it may come back
    GONE = "gone"


class ProcessId(NamedTuple):
    """A process, beyond doubt: ``machine`` is this boot and namespace, ``started`` in clock ticks since boot."""

    machine: str
    pid: int
    started: int

    def presence(self) -> Presence | None:
        """Return what is seen of it; None if that cannot be known from here."""
        if self.machine != machine():
            return None
        fields = _stat(Path(f"/proc/{self.pid}"))
        if fields is None or fields[0] in _ENDED or int(fields[19]) != self.started:
            return Presence.GONE
        return Presence.STILL if fields[0] in _STOPPED or frozen(self.pid) else Presence.HERE

    def running(self) -> bool | None:
        """Return whether it exists and is neither stopped nor frozen; None if that cannot be known from here."""
        known = self.presence()
        return None if known is None else known is Presence.HERE


#: the state of a thread: R waits for a CPU or has one, D waits for a disk or is frozen; and its progress, which grows
#: whenever it runs, waits for a CPU or has memory swapped in
_Sample: TypeAlias = tuple[str, tuple[int, int, int]]


class Starvation:
    """Looks at a silent process again and again: is there evidence that it would answer if it could?"""

    def __init__(self, process: ProcessId) -> None:
        self._process = process
        self._last = _sample(process.pid) if process.running() else None

    def evident(self) -> bool:
        """Return whether the thread that answers wants to run now, or did since we last looked."""
        last, self._last = self._last, None
        if not self._process.running():
            return False
        now = self._last = _sample(self._process.pid)
        if now is None:
            return False
        state, progress = now
        moved = last is not None and progress != last[1]
        # D without progress may be the freezer's, where its state cannot be read: no evidence then.
        return moved or state == "R" or (state == "D" and frozen(self._process.pid) is False)


def machine() -> str:
    """Return a text that is the same for processes that can look at each other in ``/proc``, and for no others."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        # Of two network namespaces the wire between them may be cut, which is no overload.
        spaces = (str(Path(f"/proc/self/ns/{kind}").readlink()) for kind in ("pid", "net"))
        return " ".join((boot, *spaces))
    except OSError:
        return f"unknown {os.urandom(8).hex()}"


def share_network(ours: str, theirs: str) -> bool:
    """Return whether two processes, whose ``machine()`` are given, have one boot and one network namespace."""
    boot, _, rest = ours.partition(" ")
    there, _, other = theirs.partition(" ")
    return boot == there and rest.rpartition(" ")[2] == other.rpartition(" ")[2] != ""


def this_process() -> ProcessId:
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
    return fields[0], (ran, waited, int(fields[9]))


def _responder(pid: int) -> Path | None:
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            if (task / "comm").read_text().strip() == THREAD_NAME:
                return task
    except OSError:  # it ends just now
        pass
    return None


def _stat(folder: Path) -> list[str] | None:
    """The fields of a ``stat`` file after the name: state, then as numbered in proc(5) less 3.

    So 9 is major faults, 11 and 12 are time on the CPU, 19 is the start.
    """
    try:
        return (folder / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def frozen(pid: int) -> bool | None:
    """Return whether the control group of ``pid``, or one above it, is frozen or about to be; None if unknown."""
    known: bool | None = None
    with contextlib.suppress(OSError):
        mounts = tuple(_mounts())
        for version, group in _groups(pid):
            for of, root, point in mounts:
                inside = group if root == "/" else group.removeprefix(root)
                if of == version and (found := _is_frozen(version, point / inside.lstrip("/"))) is not None:
                    known = bool(known) or found
    return known


def _groups(pid: int) -> Iterator[tuple[int, str]]:
    """The control groups that can freeze ``pid``: version and path."""
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        number, controllers, path = line.split(":", 2)
        if number == "0" and not controllers:
            yield 2, path
        elif "freezer" in controllers.split(","):
            yield 1, path


def _mounts() -> Iterator[tuple[int, str, Path]]:
    """Where control groups of version 1 (the freezer's hierarchy) or 2 are mounted: version, from which group on, and
    the mount point; see proc(5), ``/proc/[pid]/mountinfo``."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        if not rest.startswith("cgroup"):  # most are of other kinds
            continue
        root, point = fields.split()[3:5]
        kind, _, options = rest.split(" ", 2)
        if kind == "cgroup2":
            yield 2, root, Path(point)
        elif kind == "cgroup" and "freezer" in options.rpartition(" ")[2].split(","):
            yield 1, root, Path(point)


def _is_frozen(version: int, folder: Path) -> bool | None:
    try:
        if version == 1:
            return (folder / "freezer.state").read_text().strip() != "THAWED"
        events = (folder / "cgroup.events").read_text().split()
        return events[events.index("frozen") + 1] == "1"
    except (OSError, ValueError):  # not for us to see, or the root group, which cannot be frozen
        return None
