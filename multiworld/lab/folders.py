"""Folders for the logs of worker processes."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def log_folder(purpose: str) -> Iterator[Path]:
    """A temporary folder that stays only if the block fails: the errors of workers name their log in it."""
    folder = Path(tempfile.mkdtemp(prefix=f"multiworld-{purpose}-"))
    try:
        yield folder
    except Exception:
        raise
    except BaseException:  # an interruption names no log
        shutil.rmtree(folder, ignore_errors=True)
        raise
    shutil.rmtree(folder, ignore_errors=True)
