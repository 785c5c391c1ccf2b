"""The workers of the bench, and how much each part measures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from multiworld.config import TcpStoreAddress
from multiworld.lab.bench import workloads
from multiworld.lab.workers import Worker, WorkerPool

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Setup:
    """The pool and its store, how much to measure, and what gets a line at each step."""

    pool: WorkerPool
    host: Worker
    store: TcpStoreAddress
    rounds: int
    quick: bool
    progress: Progress

    @contextmanager
    def workers(self, *names: str) -> Iterator[list[Worker]]:
        made = [self.pool.worker(name) for name in names]
        try:
            yield made
        finally:
            self.pool.dismiss(*made)

    def join(self, world: str, members: Sequence[Worker]) -> None:
        rest = len(members), self.store, world
        for call in [member.start(workloads.join, rank, *rest) for rank, member in enumerate(members)]:
            call.result(180)


def everywhere(
    workers: Sequence[Worker], function: Callable[..., Any], *args: Any, timeout: float = 180.0
) -> list[Any]:
    return [call.result(timeout) for call in [worker.start(function, *args) for worker in workers]]
