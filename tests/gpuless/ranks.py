"""Ranks for tests of the imitation: processes that a test drives one call at a time (see rank.py)."""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from gpuless.control import Remote

_PROGRAM = Path(__file__).with_name("rank.py")
PATIENCE = 30.0  # seconds for one answer


class Rank:
    """One process on the imitation."""

    def __init__(self, number: int, environment: Mapping[str, str]) -> None:
        self.number = number
        self._folder = Path(environment["GPULESS_CONTROL"])
        kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
        self._process = subprocess.Popen(
            [sys.executable, "-I", _PROGRAM],
            env={**kept, "NCCL_HOSTID": str(number), **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )

    @property
    def process(self) -> int:
        return self._process.pid

    def start(self, name: str, *arguments: object, **named: object) -> None:
        """Begin a call."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([name, arguments, named]).encode() + b"\n")

    def answer(self, seconds: float = PATIENCE) -> Any:
        """Return the value of the call that was begun.

        Raises:
            TimeoutError: it does not return.
        """
        assert self._process.stdout is not None
        if not select.select([self._process.stdout], [], [], seconds)[0]:
            raise TimeoutError(f"rank {self.number} does not answer")
        line = self._process.stdout.readline()
        if not line:
            raise EOFError(f"rank {self.number} has ended: {self.end()}")
        found = json.loads(line)
        if "error" in found:
            raise RuntimeError(found["error"])
        return found["value"]

    def ask(self, name: str, *arguments: object, **named: object) -> Any:
        """Make a call and return its value."""
        self.start(name, *arguments, **named)
        return self.answer()

    def remote(self) -> Remote:
        """Return this process's control block."""
        return Remote(self._folder, self.process)

    def kill(self) -> None:
        """End it as `kill -9` does, and wait until it is gone."""
        self._process.kill()
        self._process.wait()

    def end(self) -> str:
        """End it; return what it wrote to standard error."""
        self.kill()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        if self._process.stderr.closed:
            return ""
        with self._process.stdin, self._process.stdout, self._process.stderr as errors:
            return errors.read().decode()


@contextlib.contextmanager
def started(count: int, environment: Mapping[str, str], **own: str) -> Iterator[list[Rank]]:
    """Start ranks, and end them on leaving."""
    ranks = [Rank(number, {**environment, **own}) for number in range(count)]
    try:
        yield ranks
    finally:
        for rank in ranks:
            rank.end()


def ask_all(ranks: list[Rank], name: str, *arguments: object, **named: object) -> list[Any]:
    """Make the same call on all ranks at the same time; return the values."""
    for rank in ranks:
        rank.start(name, *arguments, **named)
    return [rank.answer() for rank in ranks]


def connect(ranks: list[Rank], **named: object) -> None:
    """Make one communicator of all ranks."""
    identifier = ranks[0].ask("unique_id")
    for rank in ranks:
        rank.start("init", identifier, len(ranks), rank.number, **named)
    assert [rank.answer() for rank in ranks] == [0] * len(ranks)


def await_true(what: Any, seconds: float = PATIENCE) -> bool:
    """Wait until `what()` is true."""
    end = time.monotonic() + seconds
    while not what():
        if time.monotonic() > end:
            return False
        time.sleep(0.01)
    return True
