"""The Python that has nox: the one that runs the session of these tests, else this one."""

from __future__ import annotations

import functools
import os
import subprocess
import sys

import pytest

PYTHON = os.environ.get("MULTIWORLD_NOX") or sys.executable
_TIMEOUT = 120.0


@functools.cache
def _is_there() -> bool:
    done = subprocess.run([PYTHON, "-c", "import nox"], capture_output=True, timeout=_TIMEOUT, check=False)
    return done.returncode == 0


@pytest.fixture
def nox_is_here() -> None:
    """Skip the test where there is no nox."""
    if not _is_there():
        pytest.skip(f"{PYTHON} has no nox")
