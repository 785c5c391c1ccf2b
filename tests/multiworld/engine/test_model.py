"""The compiled core does what the Python engine does: the same frames, outcomes and memory after every step."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import pytest
from engine.model import Schedule

HERE = Path(__file__).parent
SOURCES = Path(__file__).parents[3] / "multiworld" / "engine"


@pytest.fixture(scope="session")
def core(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The core with its driver, compiled for this run with the checks of libstdc++."""
    made = tmp_path_factory.mktemp("core") / "core.so"
    sources = [str(path) for path in (*sorted(SOURCES.glob("core/*.cc")), HERE / "driver.cc")]
    command = ["g++", "-std=c++20", "-O1", "-g", "-D_GLIBCXX_ASSERTIONS", "-fPIC", "-shared", f"-I{SOURCES}"]
    subprocess.run([*command, "-o", str(made), *sources], check=True, timeout=300)
    return ctypes.CDLL(str(made))


@pytest.mark.parametrize("seed", range(40))
def test_schedule(core: ctypes.CDLL, seed: int) -> None:
    Schedule(core, seed).run(600)
