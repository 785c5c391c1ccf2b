"""Faults that need the privileges of root: control groups of both versions that freeze or throttle, and ptrace."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from multiworld.lab.injector import Fired, Injector, proven, thread_states
from multiworld.lab.workers import Worker

_PTRACE_SEIZE, _PTRACE_INTERRUPT, _PTRACE_DETACH = 0x4206, 0x4207, 17
_QUOTA_PERIOD = 1_000_000  # microseconds
_ROOTS = {1: (Path("/sys/fs/cgroup/freezer"),), 2: (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup"))}
_MARKS = {1: "freezer.state", 2: "cgroup.freeze"}


def root_of(version: int) -> Path | str:
    """Return the folder where groups of that version can be made and frozen, else why there is none."""
    reasons = []
    for root in _ROOTS[version]:
        probe = root / f"mw-probe-{os.getpid()}"
        try:
            probe.mkdir()
        except OSError as error:
            reasons.append(f"{root}: {error.strerror}")
            continue
        try:
            if (probe / _MARKS[version]).exists():
                return root
            reasons.append(f"{root}: groups there have no {_MARKS[version]}")
        finally:
            probe.rmdir()
    return f"control groups of version {version} cannot be frozen here: {'; '.join(reasons)}"


@contextmanager
def throttled(pid: int, share: float) -> Iterator[Path]:
    """Give a process so much of a core and no more: it waits for a CPU for most of each second.

    Raises:
        OSError: control groups of version 1 with a quota cannot be made here.
    """
    group = Path("/sys/fs/cgroup/cpu") / f"mw-slow-{os.getpid()}"
    group.mkdir()
    try:
        (group / "cpu.cfs_period_us").write_text(str(_QUOTA_PERIOD))
        (group / "cpu.cfs_quota_us").write_text(str(int(_QUOTA_PERIOD * share)))
        (group / "cgroup.procs").write_text(str(pid))
        yield group
    finally:
        (group.parent / "cgroup.procs").write_text(str(pid))
        group.rmdir()


@contextmanager
def group_frozen(injector: Injector, worker: Worker, group: Path, version: int) -> Iterator[Fired]:
    """Freeze ``worker`` by its control group, as ``docker pause`` does; it goes on at the end of the block.

    Args:
        injector: notes the fault.
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
        yield injector.record("freeze group", worker.name, at, proof)
    finally:
        (group / file).write_text(off)
        with suppress(ProcessLookupError):
            (home / "cgroup.procs").write_text(str(worker.pid))
        group.rmdir()


@contextmanager
def thread_frozen(injector: Injector, worker: Worker, tid: int) -> Iterator[Fired]:
    """Stop one thread of ``worker``, by its kernel id, as a debugger does; it goes on at the end of the block."""
    at = time.monotonic()
    _ptrace(_PTRACE_SEIZE, tid)
    try:
        _ptrace(_PTRACE_INTERRUPT, tid)
        proof = proven(lambda: _traced(worker.pid, tid), f"the stop of thread {tid}")
        yield injector.record("freeze thread", f"{worker.name}/{tid}", at, proof)
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
