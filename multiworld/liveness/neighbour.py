"""A peer process on this very machine can be looked at: starved is not stopped.

On an overloaded machine a process may not get to answer a ping for a second although nothing is wrong with it. Where
the kernel can be asked (same boot, same process namespace), a silent peer that is neither stopped nor gone is given
more time.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

#: a silent neighbour that looks alive is lost after this many times the usual patience all the same
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
        """Whether it exists and is not stopped; None if that cannot be known from here."""
        if self.machine != machine():
            return None
        fields = _stat(self.pid)
        return fields is not None and fields[0] not in _STOPPED and int(fields[19]) == self.started


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
    fields = _stat(os.getpid())
    return ProcessId(machine(), os.getpid(), int(fields[19]) if fields else 0)


def _stat(pid: int) -> list[str] | None:
    """The fields of ``/proc/<pid>/stat`` after the name: state first, start time at 19; see proc(5)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
