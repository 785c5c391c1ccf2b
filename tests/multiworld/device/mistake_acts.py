"""Acts of members in the tests of worlds that are set up wrong; imports nothing but torch and multiworld."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import torch

from multiworld import MultiWorld, World
from multiworld.backends import nccl
from multiworld.lab.context import Context
from tests.multiworld.device.members import SECONDS, Place, error_of, run

#: of the wrong world: what cannot be carried is given up after that
JOIN_SECONDS = 5.0


def sets_up_wrong(context: Context, place: Place, rank: int, mistake: str) -> Any:
    """A member of a sound world and of one whose first collective cannot be carried; the sound one is used after it."""

    async def main() -> Any:
        async with MultiWorld(op_timeout=SECONDS) as mw:
            own: Any = {"store": place.store, "backend": place.backend, "device": f"cuda:{rank}"}
            sound = await mw.join("sound", rank, 2, **own)
            if mistake == "one device":
                own["device"] = "cuda:0"
            wrong = await mw.join("wrong", rank, 2, join_timeout=JOIN_SECONDS, **own)
            before = await _sum(sound)
            context.send(os.getpid())
            await asyncio.to_thread(context.recv)
            if mistake == "another driver" and rank == 1:
                nccl.unavailable = lambda: "as if nccl4py were not installed here"  # type: ignore[assignment]
            error = await error_of(_sum(wrong))
            after = await _sum(sound)
            return type(error).__name__, str(error), before, after, sound.state.value

    return run(main)


async def _sum(w: World) -> float:
    tensor = torch.ones(4).to(w.device)
    await w.all_reduce(tensor)
    return float(tensor.cpu()[0])
