"""Control groups of both versions, where this machine has them and lets us make some."""

from __future__ import annotations

import os
from pathlib import Path

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
