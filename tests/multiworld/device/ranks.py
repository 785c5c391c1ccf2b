"""Processes on the imitated CUDA and NCCL that a test drives one call at a time (see rank.py).

They run on ``MULTIWORLD_TORCH_PYTHON``, an interpreter with a CUDA build of torch, or on the running one.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from build.errors import EnvironmentUnfitError
from gpuless.control import Remote
from gpuless.imitation import environment

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
    """Whether that interpreter has nccl4py."""
    ask = "import importlib.util, sys; sys.exit(importlib.util.find_spec('nccl') is None)"
    return subprocess.run([torch_python(), "-c", ask], check=False, timeout=60).returncode == 0


def backends() -> list[Any]:
    """The backends for devices, each skipped with its reason where it cannot run."""
    bindings = pytest.mark.skipif("not has_bindings()", reason="nccl4py is not installed beside that torch")
    return [pytest.param("nccl", marks=bindings), "torch-nccl"]


class Rank:
    """One process."""

    def __init__(self, variables: Mapping[str, str]) -> None:
        self._folder = Path(variables["GPULESS_CONTROL"])
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        path = os.pathsep.join([*filter(None, [os.environ.get("PYTHONPATH")]), str(ROOT)])
        self._process = subprocess.Popen(
            [torch_python(), Path(__file__).with_name("rank.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            bufsize=0, env={**kept, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **variables},
        )  # fmt: skip

    def start(self, name: str, *arguments: object, **named: object) -> None:
        """Begin a call."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([name, arguments, named]).encode() + b"\n")

    def answer(self, seconds: float = PATIENCE) -> Any:
        """The value of the call that was begun.

        Raises:
            TimeoutError: it does not return.
            EOFError: the process has ended.
            RuntimeError: the call raised.
        """
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            raise TimeoutError("the process does not answer")
        line = self._process.stdout.readline()
        if not line:
            raise EOFError(f"the process has ended with status {self._process.wait(5)}")
        found = json.loads(line)
        if "error" in found:
            raise RuntimeError(found["error"])
        return found["value"]

    def ask(self, name: str, *arguments: object, **named: object) -> Any:
        """Make a call and return its value."""
        self.start(name, *arguments, **named)
        return self.answer()

    def remote(self) -> Remote:
        """Its control block: injections and counters."""
        return Remote(self._folder, self._process.pid)

    def kill(self) -> None:
        """End it as ``kill -9`` does."""
        self._process.kill()
        self._process.wait()

    def end(self) -> None:
        self.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


@contextlib.contextmanager
def started(
    count: int, folder: Path, *, network: bool = False, own: Mapping[str, Sequence[str]] | None = None, **variables: str
) -> Iterator[list[Rank]]:
    """Start processes; end them with the block.

    Args:
        count: how many.
        folder: for their control blocks.
        network: they count as being on different hosts, so that NCCL notices a death.
        own: variables that each of them has for itself.
        variables: those that all of them have.
    """
    why = without_imitation()
    if why is not None:
        pytest.skip(why)
    control = folder / "control"
    control.mkdir(exist_ok=True)
    ranks: list[Rank] = []
    try:
        for place in range(count):
            mine = {name: each[place] for name, each in (own or {}).items()}
            ranks.append(Rank({**environment(torch_python(), control, network=network), **variables, **mine}))
        yield ranks
    finally:
        for rank in ranks:
            rank.end()


def make(ranks: list[Rank], name: str, folder: Path, backend: str, **named: Any) -> None:
    """Make one driver on each rank, each on a device of its own."""
    devices = named.pop("devices", [f"cuda:{place}" for place in range(len(ranks))])
    for place, rank in enumerate(ranks):
        rank.ask("make", name, str(folder / name), backend, place, len(ranks), devices[place], **named)


def opened(ranks: list[Rank], name: str, folder: Path, backend: str) -> None:
    """Make and open a driver on all ranks."""
    make(ranks, name, folder, backend)
    for rank in ranks:
        rank.ask("begin_open", name)
    assert [rank.ask("end_open", name) for rank in ranks] == [None] * len(ranks)


def ask_all(ranks: list[Rank], name: str, *arguments: Any, **named: Any) -> list[Any]:
    """Make a call on all ranks at once; its values."""
    for rank in ranks:
        rank.start(name, *arguments, **named)
    return [rank.answer() for rank in ranks]


def await_true(what: Callable[[], bool], seconds: float, why: str) -> None:
    """Wait until ``what`` holds."""
    until = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < until, why
        time.sleep(0.01)
