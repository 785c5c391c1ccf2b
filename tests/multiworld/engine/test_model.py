"""The compiled core does what the Python engine does: the same frames, outcomes and memory after every step."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
from engine.compiled import compile_core
from engine.model import play


@pytest.mark.slow
def test_schedules(tmp_path: Path) -> None:
    """Play all in one row: the core is compiled once, in three seconds."""
    library = compile_core("driver.cc", tmp_path / "core.so", "g++", "-O0", "-fPIC", "-shared")
    play(ctypes.CDLL(str(library)), 240)
