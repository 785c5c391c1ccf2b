"""Damage that a file of the cache may suffer."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest


def flip(path: Path) -> None:
    """Change one byte in the middle, as an editor or a bad copy does, in another tick of the file system's clock."""
    before = path.stat()
    path.chmod(before.st_mode | 0o200)
    with path.open("r+b") as stream:
        stream.seek(path.stat().st_size // 2)
        byte = stream.read(1)
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte[0] ^ 0x01]))
    while path.stat().st_ctime_ns == before.st_ctime_ns:
        os.utime(path)


def flip_and_keep_the_time(path: Path) -> None:
    """Change one byte and set the time back, as a backup that is put back does."""
    status = path.stat()
    flip(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def cut(path: Path) -> None:
    path.chmod(path.stat().st_mode | 0o200)
    os.truncate(path, path.stat().st_size - 1)


def empty(path: Path) -> None:
    path.chmod(path.stat().st_mode | 0o200)
    os.truncate(path, 0)


def remove(path: Path) -> None:
    path.unlink()


def folder(path: Path) -> None:
    """Put a folder with something in it where the file was."""
    path.unlink()
    (path / "in-the-way").mkdir(parents=True)
    (path / "in-the-way" / "file").write_text("x")


def unreadable(path: Path) -> None:
    """Put there what nobody, root included, can read: a link to itself."""
    path.unlink()
    path.symlink_to(path.name)


ALL: tuple[Callable[[Path], None], ...] = (flip, flip_and_keep_the_time, cut, empty, remove, folder, unreadable)
_IN_THE_WAY = pytest.mark.nightly("test_seals with every kind of damage, and this cache with other bytes")
#: Other bytes, and something else: what a cache does about the other kinds is the seals' (`test_seals.py`).
SOME = (flip_and_keep_the_time, pytest.param(folder, marks=_IN_THE_WAY))


def entry_file(path: Path) -> None:
    """Put a file where the folder of an entry was."""
    shutil.rmtree(path)
    path.write_text("in the way")


def entry_empty(path: Path) -> None:
    shutil.rmtree(path)
    path.mkdir()
