"""Replace a folder by another in one step, so that a server never finds it missing or half of it new."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from build.paths import sweep

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
#: What a kernel, a C library or a file system without the exchange answers.
_UNSUPPORTED = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)


def exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two folders of one file system in one step; return whether it can be done here."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if not rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        return True
    code = ctypes.get_errno()
    if code in _UNSUPPORTED:
        return False
    raise OSError(code, os.strerror(code), str(other))


@contextmanager
def swapped_in(final: Path) -> Iterator[Path]:
    """Yield an empty folder beside `final`, which takes its place when the block succeeds; call it with its lock held.

    Where folders cannot be exchanged, `final` is missing between two renames.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    sweep(final)
    part = Path(tempfile.mkdtemp(prefix=f".{final.name}.", suffix=".part", dir=final.parent))
    try:
        yield part
        part.chmod(0o755)
        if not final.exists():
            part.rename(final)
        elif not exchange(part, final):
            _in_two_steps(part, final)
    finally:
        shutil.rmtree(part, ignore_errors=True)


def _in_two_steps(part: Path, final: Path) -> None:
    old = Path(tempfile.mkdtemp(prefix=f".{final.name}.", suffix=".part", dir=final.parent))
    final.rename(old)  # onto an empty folder
    part.rename(final)
    shutil.rmtree(old, ignore_errors=True)
