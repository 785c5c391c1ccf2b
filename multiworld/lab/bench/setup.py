"""The workers of the bench, and how much each part measures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from multiworld.config import TcpStoreAddress
from multiworld.lab.bench import acts
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

    def join(self, worlds: list[str], members: Sequence[Worker], how: Callable[..., Any] = acts.join_many) -> list[Any]:
        """Join ``worlds`` with ``members``, by rank; what ``how`` returns in each."""
        rest = len(members), self.store
        calls = [member.start(how, worlds, rank, *rest) for rank, member in enumerate(members)]
        return [call.result(180) for call in calls]


def everywhere(
    workers: Sequence[Worker], function: Callable[..., Any], *args: Any, timeout: float = 180.0
) -> list[Any]:
    return [call.result(timeout) for call in [worker.start(function, *args) for worker in workers]]
