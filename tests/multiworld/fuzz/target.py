"""The target of the frames: one member of a small world, beside a world that must not notice."""

from __future__ import annotations

import contextlib
import logging
import os
import random
import resource
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from multiworld import BrokenWorldException, MultiWorld, MultiWorldError, World
from multiworld.operations import collectives, p2p
from multiworld.rendezvous.wiring import Wires
from multiworld.session.session import Session
from tests.multiworld.fuzz.frames import Generator
from tests.multiworld.procs import wait_until

#: around the memory of each operation; nothing may ever be written there
MARGIN = 64
CANARY = -7.0
#: after so many turns the world is made anew
MOST_TURNS = 200
#: how much a member gone mad may make us keep, in bytes
MEMORY_BOUND = 1 << 30


@dataclass
class Report:
    """Result of a run.

    Attributes:
        frames: written to the target; those that it took for a payload included.
        breaks: how often that broke the fuzzed world, by how it was noticed.
        completed: operations that ended, by name.
        seconds: it took.
    """

    frames: int = 0
    breaks: Counter[str] = field(default_factory=Counter)
    completed: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0

    def __str__(self) -> str:
        rate = self.frames / self.seconds if self.seconds else 0.0
        ended = sum(self.completed.values())
        return (
            f"{self.frames:,} frames in {self.seconds:.0f} s ({rate:,.0f}/s): the fuzzed world broke "
            f"{sum(self.breaks.values())} times ({dict(self.breaks)}), {ended} operations ended, nothing else broke"
        )


class _Errors(logging.Handler):
    """Everything that the package logs as an error: nothing of a peer's may lead to one."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.seen: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.seen.append(record.getMessage() + (f": {record.exc_info[1]!r}" if record.exc_info else ""))

    def check(self) -> None:
        """Fail if there was any."""
        assert not self.seen, self.seen[:3]


@contextlib.contextmanager
def no_errors_logged() -> Iterator[_Errors]:
    """Fail if the package logs an error in the block: at its end, and whenever it is checked."""
    handler = _Errors()
    logger = logging.getLogger("multiworld")
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)
    handler.check()


@dataclass
class Fuzzed:
    """A world of two of which one member, ours to play, writes what it likes."""

    store: str
    draw: random.Random
    wildness: float
    report: Report = field(default_factory=Report)

    def __post_init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self._pool = self._stack.enter_context(ThreadPoolExecutor(4))
        self._socket = self._stack.enter_context(socket.socket())
        self._stack.enter_context(self._our_wire())
        self._homes = [self._stack.enter_context(MultiWorld()) for _ in range(4)]
        self._target, self._mad = self._join("fuzzed", self._homes[:2])
        self._calm = self._join("calm", self._homes[2:])
        self._lent: list[tuple[Any, torch.Tensor]] = []
        self._begin()

    def close(self) -> None:
        """Leave all worlds; what was not touched until now never was."""
        self._check_memory()
        self._stack.close()

    def turn(self, frames: int) -> None:
        """Start an operation, write some frames and let the target read them."""
        self._start_something()
        data = b"".join(self.generator.frame() for _ in range(frames))
        self.report.frames += frames
        self._write(data)
        self._turns += 1
        if self._turns > MOST_TURNS:  # all may go into one payload that was announced and never ends
            self._target.abort("nothing is read any more")
        if self._target.failure is None:
            self._hear()
        else:
            self._come_back()

    def check_the_others(self) -> None:
        """The world beside it works, and memory stays bounded."""
        sums = self._pool.map(lambda world: _sum(world), self._calm)
        assert list(sums) == [2.0, 2.0]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        assert peak - self._start_bytes < MEMORY_BOUND, f"{peak - self._start_bytes} bytes more than at the start"
        assert all(world.failure is None for world in self._calm)

    def _join(self, name: str, homes: list[MultiWorld]) -> list[World]:
        def join(rank: int) -> World:
            return homes[rank].sync.join(name, rank, 2, store=self.store, op_timeout=3600)

        return list(self._pool.map(join, range(2)))

    @contextlib.contextmanager
    def _our_wire(self) -> Iterator[None]:
        """Have the data connection of the member that is ours to play as well."""
        real = Session._connect

        def connect(session: Session, wires: Wires, *args: Any) -> None:
            if session.name == "fuzzed" and 0 in wires.lead_to():
                number = wires.held.descriptors.get(0)
                self._socket.close()
                self._socket = socket.socket(fileno=os.dup(wires.lanes[0].fileno() if number is None else number))
                self._socket.setblocking(False)
            real(session, wires, *args)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Session, "_connect", connect)
            yield

    def _begin(self) -> None:
        self._turns = 0
        self.generator = Generator(self.draw, self.wildness)
        if not self.report.frames:
            self._start_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

    def _start_something(self) -> None:
        """An operation of the target, whose memory lies between two margins."""
        session: Any = self._target.member.session
        engine = session.engine
        if len(engine.operations) > 16 or session.failure is not None:
            return
        whole = torch.full((64 + 2 * MARGIN,), CANARY)
        lent = whole[MARGIN:-MARGIN]
        starters = {
            "recv": lambda: p2p.recv(engine, self._target, lent, 1, 0),
            "recv_any": lambda: p2p.recv(engine, self._target, lent, None, 1),
            "recv_tensor": lambda: p2p.recv_tensor(engine, self._target, 1, 2, None),
            "recv_object": lambda: p2p.recv_object(engine, self._target, 1, 3, ()),
            "send": lambda: p2p.send(engine, self._target, lent, 1, 0),
            "send_tensor": lambda: p2p.send_tensor(engine, self._target, lent, 1, 1),
            "all_reduce": lambda: collectives.all_reduce(engine, self._target, lent, torch.distributed.ReduceOp.SUM),
            "all_gather": lambda: collectives.all_gather(engine, self._target, [lent, torch.zeros(64)], lent.clone()),
        }
        name = self.draw.choice(tuple(starters))
        operation = starters[name]()
        self._lent.append((operation, whole))
        if self.draw.random() < 0.3:
            with session.lock:
                operation.withdraw()
        if len(self._lent) > 64:
            self._check_memory()

    def _write(self, data: bytes) -> None:
        """Let the target read as it comes, in pieces of any length."""
        at = 0
        while at < len(data):
            step = self.draw.choice((1, 23, 24, 4_096, 1 << 17))
            try:
                at += self._socket.send(data[at : at + step])
            except BlockingIOError:
                pass
            except OSError:
                return
            self._target.member.session.bridge.drain(1)
            if self._target.failure is not None:
                return

    def _hear(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):
            self.generator.hear(self._socket.recv(1 << 20))

    def _come_back(self) -> None:
        """It broke, as it should have; typed, and with an end for whoever waited."""
        failure: Any = self._target.failure
        assert isinstance(failure, BrokenWorldException), repr(failure)
        self.report.breaks[getattr(failure, "how", type(failure).__name__)] += 1
        self._check_memory()
        list(self._pool.map(lambda world: world.sync.rejoin(timeout=20), (self._target, self._mad)))
        bridge = self._mad.member.session.bridge
        wait_until(bridge.flushed, 20.0, "the mark is not written")  # all before it would be dropped
        self._begin()

    def _check_memory(self) -> None:
        """Nothing was written beside the memory of any operation; and those that ended, ended in their own words."""
        for operation, whole in self._lent:
            assert bool((whole[:MARGIN] == CANARY).all()), f"{operation.name}: written to below its memory"
            assert bool((whole[-MARGIN:] == CANARY).all()), f"{operation.name}: written to above its memory"
            if operation.done and not operation.withdrawn:
                with contextlib.suppress(MultiWorldError):
                    operation.result()
                self.report.completed[operation.name] += 1
        self._lent.clear()


def _sum(world: World) -> float:
    value = torch.ones(1)
    world.sync.all_reduce(value)
    return float(value)


def run(
    store: str,
    *,
    seed: int,
    frames: int,
    seconds: float,
    wildness: float = 0.003,
    progress: Callable[[Report], None] = lambda _: None,
) -> Report:
    """Write up to ``frames`` frames in up to ``seconds`` seconds.

    ``progress`` is called after each million.

    Raises:
        AssertionError: something was broken that is not the fuzzed world.
    """
    started = time.monotonic()
    with no_errors_logged() as errors:
        fuzzed = Fuzzed(store, random.Random(seed), wildness)
        try:
            turns = 0
            while fuzzed.report.frames < frames and time.monotonic() - started < seconds:
                fuzzed.turn(20)
                turns += 1
                if turns % 500 == 0:
                    fuzzed.check_the_others()
                    errors.check()
                if turns % 50_000 == 0:
                    fuzzed.report.seconds = time.monotonic() - started
                    progress(fuzzed.report)
            fuzzed.check_the_others()
        finally:
            fuzzed.close()
    fuzzed.report.seconds = time.monotonic() - started
    return fuzzed.report
