"""Processes on the imitated CUDA and NCCL that a test drives one call at a time (see rank.py).

They run on ``MULTIWORLD_TORCH_PYTHON``, an interpreter with a CUDA build of torch, or on the running one.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from build.errors import EnvironmentUnfitError
from gpuless.control import Remote, Switch
from gpuless.imitation import environment
from multiworld.lab.workers import VanishedError, WorkerPool
from tests.multiworld.device import rank

ROOT = Path(__file__).resolve().parents[3]
PATIENCE = 120.0  # seconds for one answer: a busy machine takes long to import torch


def torch_python() -> Path:
    return Path(os.environ.get("MULTIWORLD_TORCH_PYTHON", sys.executable))


@functools.cache
def without_imitation() -> str | None:
    """Why there is nothing to run on; None if there is."""
    try:
        environment(torch_python(), Path("/nowhere"))
    except EnvironmentUnfitError as error:
        return f"no simulated NCCL (set MULTIWORLD_TORCH_PYTHON to a CUDA build of torch): {error.what}"
    return None


@functools.cache
def has_bindings() -> bool:
    """Return whether that interpreter has nccl4py."""
    ask = "import importlib.util, sys; sys.exit(importlib.util.find_spec('nccl') is None)"
    return subprocess.run([torch_python(), "-c", ask], check=False, timeout=60).returncode == 0


def backends() -> list[Any]:
    """The backends for devices, each skipped with its reason where it cannot run."""
    bindings = pytest.mark.skipif("not has_bindings()", reason="nccl4py is not installed beside that torch")
    return [pytest.param("nccl", marks=bindings), "torch-nccl"]


class Pool:
    """Source of the processes of this run: one that has loaded torch on the imitation forks them.

    Attributes:
        control: folder of their control blocks; see ``gpuless.control``.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self.control = Path(self._folder.name)
        variables = environment(torch_python(), self.control)
        self.workers = WorkerPool(
            python_path=(str(ROOT), str(ROOT / "tests" / "multiworld")),
            preload=(rank.__name__,),
            python=str(torch_python()),
            environment=variables,
        )

    def close(self) -> None:
        self.workers.close()
        self._folder.cleanup()


@functools.cache
def pool() -> Pool:
    """The pool, made when it is first asked for; the test is skipped where there is no simulated NCCL."""
    why = without_imitation()
    if why is not None:
        pytest.skip(why)
    return Pool()


def close_pool() -> None:
    """End the pool, if it was made."""
    if pool.cache_info().currsize:
        pool().close()
        pool.cache_clear()


class Process:
    """One process."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._worker = pool().workers.run(rank.serve, dict(variables))

    def start(self, name: str, *arguments: object, **named: object) -> None:
        """Begin a call."""
        self._worker.send((name, arguments, named))

    def answer(self, seconds: float = PATIENCE) -> Any:
        """The value of the call that was begun.

        Raises:
            TimeoutError: it does not return.
            EOFError: the process has ended.
            RuntimeError: the call raised.
        """
        try:
            value, error = self._worker.recv(seconds)
        except VanishedError as gone:
            raise EOFError(str(gone)) from None
        if error:
            raise RuntimeError(error)
        return value

    def ask(self, name: str, *arguments: object, **named: object) -> Any:
        """Make a call and return its value."""
        self.start(name, *arguments, **named)
        return self.answer()

    def remote(self) -> Remote:
        """Its control block: injections and counters."""
        return Remote(pool().control, self._worker.pid)

    def kill(self) -> None:
        """End it as ``kill -9`` does."""
        self._worker.kill()

    def end(self) -> None:
        pool().workers.dismiss(self._worker)


@contextlib.contextmanager
def started(
    count: int, *, network: bool = False, own: Mapping[str, Sequence[str]] | None = None, **variables: str
) -> Iterator[list[Process]]:
    """Start processes; end them with the block.

    Args:
        count: how many.
        network: they count as being on different hosts, so that NCCL notices a death.
        own: variables that each of them has for itself.
        variables: those that all of them have.
    """
    ranks: list[Process] = []
    try:
        each = [{name: given[place] for name, given in (own or {}).items()} for place in range(count)]
        ranks.extend(Process({**variables, **mine}) for mine in each)
        for one in ranks:
            with one.remote() as remote:
                remote.switch(Switch.NETWORK, on=network)
        yield ranks
    finally:
        for one in ranks:
            one.end()


def make(ranks: list[Process], name: str, folder: Path, backend: str, **named: Any) -> None:
    """Make one driver on each rank, each on a device of its own."""
    devices = named.pop("devices", [f"cuda:{place}" for place in range(len(ranks))])
    for place, one in enumerate(ranks):
        made = one.ask("make", name, str(folder / name), backend, place, len(ranks), devices[place], **named)
        assert made == backend, f"the row {backend} runs on the driver {made}"


def opened(ranks: list[Process], name: str, folder: Path, backend: str) -> None:
    """Make and open a driver on all ranks."""
    make(ranks, name, folder, backend)
    for one in ranks:
        one.ask("begin_open", name)
    assert [one.ask("end_open", name) for one in ranks] == [None] * len(ranks)


def ask_all(ranks: list[Process], name: str, *arguments: Any, **named: Any) -> list[Any]:
    """Make a call on all ranks at once; its values."""
    for one in ranks:
        one.start(name, *arguments, **named)
    return [one.answer() for one in ranks]


def await_true(what: Callable[[], bool], seconds: float, why: str) -> None:
    """Wait until ``what`` holds."""
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, why
        time.sleep(0.01)
