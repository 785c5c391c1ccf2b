"""Fixtures: members of a world on simulated NCCL; a pool of workers per test process, with torch loaded once."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuless.imitation import environment
from multiworld.lab.workers import WorkerPool
from tests.multiworld.nccl.device_acts import Place
from tests.multiworld.nccl.ranks import ROOT, torch_python, without_imitation
from tests.multiworld.nccl.simulated import Cluster


@pytest.fixture(scope="session")
def pool() -> Iterator[tuple[WorkerPool, Path]]:
    """Where the workers come from, and the folder of their control blocks."""
    missing = without_imitation()
    if missing is not None:
        pytest.skip(missing)
    python = torch_python()
    with tempfile.TemporaryDirectory() as control:
        variables = environment(python, Path(control))
        with WorkerPool(python_path=(str(ROOT),), python=str(python), environment=variables) as made:
            yield made, Path(control)


@pytest.fixture
def members(pool: tuple[WorkerPool, Path], tmp_path: Path, backend: str) -> Iterator[Cluster]:
    """Members of a world of this test's own, on each driver."""
    made = Cluster(*pool, Place(f"file://{tmp_path}/store", backend))
    try:
        yield made
    finally:
        made.end()
