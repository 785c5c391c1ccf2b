"""A small file system, for what a full or read-only disk does."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(place: Path, options: str) -> Iterator[None]:
    """Mount one at ``place`` with the ``options`` of tmpfs; skip where that is not allowed."""
    command = ["mount", "-t", "tmpfs", "-o", options, "small", str(place)]
    done = subprocess.run(command, capture_output=True, timeout=30, check=False)
    if done.returncode:
        pytest.skip(f"a small file system cannot be mounted here: {done.stderr.decode().strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True, timeout=30)
