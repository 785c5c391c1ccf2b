"""The work of processes while they are hit: traffic in all their worlds, every break noted, every world joined
again."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import random
import time
from collections import deque
from dataclasses import astuple, dataclass, field
from typing import Any, NoReturn

import torch

from multiworld.config import TcpStoreAddress
from multiworld.errors import (
    BrokenWorldException,
    MultiWorldError,
    PeerLost,
    RendezvousError,
    StaleGeneration,
    TensorMismatch,
)
from multiworld.lab.context import Context
from multiworld.tensors import memory_check
from multiworld.worlds.world import World

_BREATH_SECONDS = 0.02
_REJOIN_SECONDS = 15.0
_BAD_TAG = 99
_TAG = 98
_CANARY = -1.0
#: float32: one message fits into the sockets, one does not; as a collective, one travels with the signatures, one not
_LENGTHS = (1_000, 400_000)
_LONGEST_WAIT = 0.004
_WATCHED = 8


@dataclass(frozen=True, slots=True)
class Membership:
    """One world of a worker."""

    world: str
    rank: int
    size: int


@dataclass(frozen=True, slots=True)
class Notice:
    """At a monotonic time, a worker notices that a world is ``broken`` (``how``, and which ``ranks``) or ``back``."""

    worker: int
    world: str
    what: str
    at: float
    generation: int
    error: str = ""
    ranks: tuple[int, ...] = ()
    how: str = ""


@dataclass(slots=True)
class Tally:
    """The work that a worker has done: times at which rounds of a world ended, and what went wrong with data."""

    rounds: dict[str, list[tuple[float, float]]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    surprises: list[str] = field(default_factory=list)


async def begin(context: Context, worker: int, memberships: list[Membership], store: TcpStoreAddress) -> None:
    tally = context.kept["tally"] = Tally()
    context.kept["worker"] = worker
    context.kept["tasks"] = [asyncio.ensure_future(_work(context, each, store, tally)) for each in memberships]


async def finish(context: Context) -> Tally:
    tasks: list[asyncio.Task[None]] = context.kept["tasks"]
    # Again and again: before Python 3.12, ``asyncio.wait_for`` loses a cancellation that comes with the result.
    while any(not task.done() for task in tasks):
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=_BREATH_SECONDS)
    tally: Tally = context.kept["tally"]
    try:
        memory_check.verify()  # finds something only with MULTIWORLD_DEBUG_MEMORY=1
    except memory_check.MemoryTouched as error:
        tally.wrong.append(str(error))
    return tally


async def _work(context: Context, membership: Membership, store: TcpStoreAddress, tally: Tally) -> None:
    times = tally.rounds.setdefault(membership.world, [])
    try:
        world = await _join(context, membership, store)
        while True:
            try:
                await _rounds(world, times, tally)
            except BrokenWorldException as broken:
                _note(context, membership, "broken", world.generation, broken)
            world = await _back(context, world, membership, store)
            _note(context, membership, "back", world.generation)
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - whatever it is, it is a finding
        tally.surprises.append(f"{membership.world}: {error!r}")
        context.mark("surprise", f"worker {context.kept['worker']}, {membership.world}: {error!r}")


async def _rounds(world: World, times: list[tuple[float, float]], tally: Tally) -> NoReturn:
    right, left = (world.rank + 1) % world.size, (world.rank - 1) % world.size
    impatient = Impatient(world, random.Random(world.rank), tally.wrong)  # noqa: S311 - no secret
    turn = 0
    while True:
        started = time.monotonic()
        token = float(world.rank + 16 * (turn % 1000))
        got, total = torch.zeros(64), torch.full((20_000,), float(world.rank))
        await asyncio.gather(world.send(torch.full((64,), token), right), world.recv(got, left))
        await world.all_reduce(total)
        times.append((started, time.monotonic() - started))
        whole = bool((got == float(left + 16 * (turn % 1000))).all()) and bool((total == sum(range(world.size))).all())
        if not whole:
            tally.wrong.append(f"{world.name}, generation {world.generation}, round {turn}")
        await impatient.turn(turn)
        turn += 1
        await asyncio.sleep(_BREATH_SECONDS)


async def _join(context: Context, membership: Membership, store: TcpStoreAddress) -> World:
    while True:
        try:
            options: Any = {"store": store, "join_timeout": _REJOIN_SECONDS, "on_cancel": "finish"}
            world = await context.mw.join(*astuple(membership), **options)
        except RendezvousError:
            await asyncio.sleep(0.1)
            continue
        _note(context, membership, "back", world.generation)
        return world


async def _back(context: Context, world: World, membership: Membership, store: TcpStoreAddress) -> World:
    """Rejoin until it works; a member that the others have replaced joins as a new one."""
    while True:
        if context.kept.get("away") == membership.world:  # we left it on purpose: ``come_back`` says when to join again
            await asyncio.sleep(0.05)
            continue
        if context.mw.worlds.get(membership.world) is not world:
            return await _join(context, membership, store)
        try:
            return await world.rejoin(timeout=_REJOIN_SECONDS)
        except StaleGeneration:
            await world.leave()
        except RendezvousError:
            await asyncio.sleep(0.1)


def _note(
    context: Context, membership: Membership, what: str, generation: int, error: MultiWorldError | None = None
) -> None:
    ranks, how = (error.ranks, error.how) if isinstance(error, PeerLost) else ((), "")
    name = type(error).__name__ if error is not None else ""
    worker = context.kept["worker"]
    context.mark("notice", Notice(worker, membership.world, what, time.monotonic(), generation, name, ranks, how))


async def step_out(context: Context, name: str) -> None:
    """Leave a world in good order, and stay away until ``come_back``."""
    context.kept["away"] = name
    with contextlib.suppress(MultiWorldError):
        await context.mw[name].leave()


def come_back(context: Context) -> None:
    context.kept["away"] = ""


def abort(context: Context, name: str) -> None:
    context.mw[name].abort("chaos breaks it on purpose")


def hold_gil(context: Context, seconds: float) -> None:
    """Let no Python thread of this process run for a while."""
    context.mark("holding")
    ctypes.PyDLL(None).usleep(int(seconds * 1e6))


async def mismatch(context: Context, name: str, peer: int, sending: bool) -> str:
    """One side of a message whose length is not what is expected; the name of what came of it."""
    world: Any = context.mw[name]
    try:
        if sending:
            await world.send(torch.zeros(8), peer, tag=_BAD_TAG)
        else:
            await world.recv(torch.zeros(4), peer, tag=_BAD_TAG)
    except TensorMismatch:
        return "TensorMismatch"
    except MultiWorldError as error:
        return repr(error)
    return "nothing"


class Impatient:
    """One member of traffic that stops waiting at random moments; all members of a world take the same turns. A message
    must not be torn, and memory that was given back must not be written to: ``wrong`` gets a line for each case."""

    def __init__(self, world: World, draw: random.Random, wrong: list[str]) -> None:
        self._world = world
        self._draw = draw
        self._wrong = wrong
        self._given_back: deque[torch.Tensor] = deque(maxlen=_WATCHED)

    async def turn(self, number: int) -> None:
        """Exchange a message with the neighbours, and reduce, giving up waiting now and then."""
        length = _LENGTHS[number % len(_LENGTHS)]
        right, left = (self._world.rank + 1) % self._world.size, (self._world.rank - 1) % self._world.size
        value = float(number % 1000)
        sending = self._world.send(torch.full((length,), value), right, tag=_TAG)
        await asyncio.gather(sending, self._receive(left, length, value))
        await self._reduce(length)
        if any(not bool((memory == _CANARY).all()) for memory in self._given_back):
            self._wrong.append(f"{self._world.name}: memory was written to after a cancelled operation")

    async def _receive(self, left: int, length: int, value: float) -> None:
        while True:
            memory = torch.zeros(length)
            if await self._given_up(self._world.recv(memory, left, tag=_TAG), memory):
                continue
            if not bool((memory == value).all()):
                self._wrong.append(f"{self._world.name}: a message came torn or out of order")
            return

    async def _reduce(self, length: int) -> None:
        """A member that stops waiting gets nothing; the others still get the sum."""
        memory = torch.ones(length)
        given_up = await self._given_up(self._world.all_reduce(memory), memory, often=0.5)
        if not given_up and not bool((memory == self._world.size).all()):
            self._wrong.append(f"{self._world.name}: a sum is wrong after a member stopped waiting for it")

    async def _given_up(self, call: object, memory: torch.Tensor, often: float = 0.8) -> bool:
        """Await ``call``, mostly not for long; whether it was given up, its memory then being put to another use."""
        seconds = self._draw.uniform(0.0, _LONGEST_WAIT) if self._draw.random() < often else None
        try:
            await asyncio.wait_for(call, seconds)  # type: ignore[arg-type]
        except asyncio.TimeoutError:
            memory.fill_(_CANARY)
            self._given_back.append(memory)
            return True
        return False
