"""Whether a process is frozen by its control group: ``docker pause``, ``systemctl freeze``, a batch system's suspend.

The kernel shows a frozen process as asleep, as it shows an idle one. Its control group tells the difference, in version
1 (``freezer.state``) and version 2 (``cgroup.events``), where the file system of control groups can be read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class _Mount:
    """A place where control groups can be looked at.

    Attributes:
        version: 1 (the freezer's hierarchy) or 2.
        root: control group that is shown there.
        point: folder that it is mounted at.
    """

    version: int
    root: str
    point: Path


def frozen(pid: int) -> bool | None:
    """Whether the control group of ``pid``, or one above it, is frozen or about to be; None if nobody can tell."""
    known: bool | None = None
    with contextlib.suppress(OSError):
        mounts = tuple(_mounts())
        for version, group in _groups(pid):
            for mount in mounts:
                if mount.version == version and (found := _frozen_at(mount, group)) is not None:
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


def _mounts() -> Iterator[_Mount]:
    """See proc(5), ``/proc/[pid]/mountinfo``."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields, _, rest = line.partition(" - ")
        root, point = fields.split()[3:5]
        kind, _, options = rest.split(" ", 2)
        if kind == "cgroup2":
            yield _Mount(2, root, Path(point))
        elif kind == "cgroup" and "freezer" in options.rpartition(" ")[2].split(","):
            yield _Mount(1, root, Path(point))


def _frozen_at(mount: _Mount, group: str) -> bool | None:
    inside = group if mount.root == "/" else group.removeprefix(mount.root)
    folder = mount.point / inside.lstrip("/")
    try:
        if mount.version == 1:
            return (folder / "freezer.state").read_text().strip() != "THAWED"
        events = (folder / "cgroup.events").read_text().split()
        return events[events.index("frozen") + 1] == "1"
    except (OSError, ValueError):  # not for us to see, or the root group, which cannot be frozen
        return None
