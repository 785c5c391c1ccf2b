"""Control groups of both versions, where this machine has them and lets us make some."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_QUOTA_PERIOD = 1_000_000  # microseconds
_ROOTS = {
    1: (Path("/sys/fs/cgroup/freezer"),),
    2: (Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup")),
}
_MARKS = {1: "freezer.state", 2: "cgroup.freeze"}


def root_of(version: int) -> Path | str:
    """Where groups of that version can be made and frozen; else why not."""
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
