"""Leases: who uses an entry of the cache, and when it was last used.

A run takes a lease on each entry that it reads, a shared lock on a `.use` file next to it, which ends with its process.
`build.clearing` frees only entries without a lease; the time of the `.use` file is that of the last use.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

#: Open lease files of this process, by entry: they stay open until it ends.
_held: dict[Path, int] = {}


def place(entry: Path) -> Path:
    return entry.with_name(entry.name + ".use")


def take(entry: Path) -> Path:
    """Take a lease on `entry` for the rest of this process, and return `entry`; waits while it is being freed."""
    with contextlib.suppress(OSError):  # a cache that cannot be written is not cleaned either
        while entry not in _held:
            # Lock the lease file, unless it is removed in the meantime: then its lock protects nothing.
            handle = os.open(place(entry), os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(handle, fcntl.LOCK_SH)
                if os.fstat(handle).st_nlink:
                    _held[entry], handle = handle, -1
            finally:
                if handle >= 0:
                    os.close(handle)
        os.utime(_held[entry])
    return entry


def inherit(entry: Path) -> None:
    """Keep the lease on `entry` when another program takes the place of this one (`exec`)."""
    if entry in _held:
        os.set_inheritable(_held[entry], True)


@contextmanager
def unused(entry: Path) -> Iterator[bool]:
    """Yield whether no process has a lease on `entry`; if so, none gets one in the block.

    With the entry, its lease file goes.
    """
    known = place(entry).exists()  # its time is that of the last use: only a run makes one
    handle = os.open(place(entry), os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            free = True
        except BlockingIOError:
            free = False
        yield free
        if free and not (known and entry.exists()):
            place(entry).unlink(missing_ok=True)
    finally:
        os.close(handle)
