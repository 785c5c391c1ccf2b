"""Traffic whose waiting is given up at random moments: no message is torn, and memory given back stays as it is."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from multiworld.world import World

_TAG = 98
_CANARY = -1.0
#: float32: one message fits into the sockets, one does not; as a collective, one travels with the signatures, one not
_LENGTHS = (1_000, 400_000)
_LONGEST_WAIT = 0.004
_WATCHED = 8


class Impatient:
    """One member's share of it; all members of a world take the same turns.

    Args:
        world: in which.
        draw: when waiting is given up.
        wrong: gets a line for everything that is not as it should be.
    """

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
        await asyncio.gather(
            self._world.send(torch.full((length,), value), right, tag=_TAG), self._receive(left, length, value)
        )
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
        """Who gives up gets nothing; the others get the sum all the same."""
        memory = torch.ones(length)
        given_up = await self._given_up(self._world.all_reduce(memory), memory, often=0.5)
        if not given_up and not bool((memory == self._world.size).all()):
            self._wrong.append(f"{self._world.name}: a sum is wrong since somebody gave up waiting for it")

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
