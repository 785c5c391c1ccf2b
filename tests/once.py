"""Fixtures that all processes of a run share: one makes them, and the others wait for it and take them over."""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from filelock import FileLock

T = TypeVar("T")


def once(request: pytest.FixtureRequest, name: str, make: Callable[[Path], T]) -> T:
    """Return what `make` returned in the process that came first, in a folder that no process may change.

    Args:
        request: of the fixture.
        name: of the folder, the same in all processes.
        make: gets the folder; what it returns can be pickled.
    """
    top: Path = request.getfixturevalue("tmp_path_factory").getbasetemp()
    if hasattr(request.config, "workerinput"):
        top = top.parent  # that of pytest-xdist's run
    folder, kept = top / name, top / f"{name}.pickle"
    with FileLock(top / f"{name}.lock"):
        if kept.exists():
            found: T = pickle.loads(kept.read_bytes())  # noqa: S301 - our own
            return found
        shutil.rmtree(folder, ignore_errors=True)  # of a process that failed
        folder.mkdir()
        made = make(folder)
        kept.write_bytes(pickle.dumps(made))
        return made
