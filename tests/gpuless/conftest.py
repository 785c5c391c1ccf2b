"""The CUDA build of torch that the harness is tested on: `MULTIWORLD_TORCH_PYTHON`, else the running interpreter."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from build.errors import EnvironmentUnfitError
from gpuless.imitation import built, environment
from gpuless.subject import Subject, examine


@pytest.fixture(scope="session")
def subject() -> Subject:
    python = Path(os.environ.get("MULTIWORLD_TORCH_PYTHON", sys.executable))
    try:
        return examine(python)
    except EnvironmentUnfitError as error:
        pytest.skip(f"no CUDA build of torch to probe (set MULTIWORLD_TORCH_PYTHON): {error.what}")


@pytest.fixture(scope="session")
def native(subject: Subject) -> Path:
    return built(subject)


@pytest.fixture
def imitated(subject: Subject, tmp_path: Path) -> dict[str, str]:
    """The variables of a process on the imitation, with a folder for control blocks of this test's own."""
    return environment(subject.python, tmp_path)
