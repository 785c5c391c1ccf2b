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
from device_acts import Place

from multiworld.lab.workers import Worker, WorkerPool

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
SECONDS = 60.0


class Cluster:
    """Members of one test: a process each, on one host, on one imitated device.

    Attributes:
        control: folder with a control block for each process; see ``gpuless.control``.
    """

    def __init__(self, pool: WorkerPool, control: Path, place: Place) -> None:
        self._pool = pool
        self._workers: list[Worker] = []
        self._place = place
        self.control = control

    def start(self, function: Callable[..., Any], rank: int, *args: Any) -> Worker:
        """Start ``function(context, place, rank, *args)`` in a process of its own."""
        worker = self._pool.run(function, self._place, rank, *args)
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


@pytest.fixture(params=["nccl", "torch-nccl"])
def members(request: pytest.FixtureRequest, pool: tuple[WorkerPool, Path], tmp_path: Path) -> Iterator[Cluster]:
    """Members of a world of this test's own, on each driver.

    ``nccl`` takes torch's group where NVIDIA's bindings are missing.
    """
    made = Cluster(*pool, Place(f"file://{tmp_path}/store", request.param))
    try:
        yield made
    finally:
        made.end()
