"""Worker processes on the imitation of CUDA and NCCL: real processes, real data, no GPU.

They run in the interpreter that ``MULTIWORLD_TORCH_PYTHON`` names, with a CUDA build of torch and nothing else; the
functions that they run are in modules that import no more than that.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from multiworld.lab.workers import Worker, WorkerPool
from tests.multiworld.device.members import Place

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
        """Run a function in ``size`` members; return the results by rank."""
        workers = [self.start(function, rank, *args) for rank in range(size)]
        return [worker.result(SECONDS) for worker in workers]

    def end(self) -> None:
        """End those that are left."""
        self._pool.dismiss(*self._workers)
