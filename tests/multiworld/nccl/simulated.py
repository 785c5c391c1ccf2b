"""Worker processes on the imitation of CUDA and NCCL: real processes, real data, no GPU.

They run in the interpreter that ``MULTIWORLD_TORCH_PYTHON`` names, with a CUDA build of torch and nothing else; the
functions that they run are in modules that import no more than that.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from multiworld.lab.workers import Worker, WorkerPool

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
SECONDS = 60.0


class Cluster:
    """Members of one test: a process each, on one host, on one imitated device.

    Attributes:
        control: folder with a control block for each process; see ``gpuless.control``.
    """

    def __init__(self, pool: WorkerPool, control: Path, store: str) -> None:
        self._pool = pool
        self._workers: list[Worker] = []
        self.control = control
        self.store = store

    def start(self, function: Callable[..., Any], rank: int, *args: Any) -> Worker:
        """Start ``function(context, store, rank, *args)`` in a process of its own."""
        worker = self._pool.run(function, self.store, rank, *args)
        self._workers.append(worker)
        return worker

    def all(self, size: int, function: Callable[..., Any], *args: Any) -> list[Any]:
        """What ``size`` members return, by rank."""
        workers = [self.start(function, rank, *args) for rank in range(size)]
        return [worker.result(SECONDS) for worker in workers]

    def end(self) -> None:
        """End those that are left."""
        self._pool.dismiss(*self._workers)


@pytest.fixture(scope="session")
def pool() -> Iterator[tuple[WorkerPool, Path]]:
    """Where the workers come from, and the folder of their control blocks."""
    imitation = pytest.importorskip("gpuless.imitation", reason="nccl (simulated): the harness needs the tooling")
    from build.errors import EnvironmentUnfitError

    python = os.environ.get("MULTIWORLD_TORCH_PYTHON", sys.executable)
    with tempfile.TemporaryDirectory() as control:
        try:
            environment = imitation.environment(Path(python), Path(control))
        except EnvironmentUnfitError as error:
            pytest.skip(
                f"nccl (simulated): {error.what}; set MULTIWORLD_TORCH_PYTHON to one with a CUDA build of torch"
            )
        with WorkerPool(python_path=(str(ROOT), str(HERE)), python=python, environment=environment) as made:
            yield made, Path(control)


@pytest.fixture
def members(pool: tuple[WorkerPool, Path], tmp_path: Path) -> Iterator[Cluster]:
    """Members of a world of this test's own."""
    made = Cluster(*pool, f"file://{tmp_path}/store")
    try:
        yield made
    finally:
        made.end()
