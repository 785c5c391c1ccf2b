"""Worlds side by side on one device: what the others notice when some of them lose a peer in mid-transfer."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable
from dataclasses import dataclass

import torch

from multiworld.errors import PeerLost
from multiworld.lab.context import Context
from multiworld.worlds.multi_world import MultiWorld
from multiworld.worlds.world import World

_DEVICE = "cuda:0"
_SECONDS = 120.0
_ELEMENTS = 1 << 20
#: transfers in each kept world that are not counted
_FIRST_TURNS = 20


@dataclass(frozen=True, slots=True)
class Scene:
    """The worlds and members of one measurement: the leader has ``kept`` worlds with a peer that stays, and ``lost``
    ones with a peer that dies after ``turns`` transfers in each kept world.
    """

    folder: str
    backend: str
    kept: int
    lost: int
    turns: int


@dataclass(frozen=True, slots=True)
class Seen:
    """The observations of the leader: seconds of each transfer in a kept world ``before`` and ``after`` the death, and
    the monotonic time at which the last operation with the dead peer was ``released``.
    """

    before: list[float]
    after: list[float]
    released: float


def leader(context: Context, scene: Scene) -> Seen:
    """Be in all worlds; says ``"ready"`` and ``"waiting"``, and is told to go on after each."""

    async def main() -> Seen:
        async with _multiworld("leader") as mw:
            kept = [await _join(mw, scene, f"kept{number}", 0) for number in range(scene.kept)]
            lost = [await _join(mw, scene, f"lost{number}", 0) for number in range(scene.lost)]
            small, large = torch.ones(1 << 10).to(_DEVICE), torch.ones(_ELEMENTS).to(_DEVICE)
            for w in (*kept, *lost):
                await w.send(small, 1)
            await _told(context, "ready")
            await _paces(kept, small, _FIRST_TURNS)
            before = await _paces(kept, small, scene.turns)
            waiting = [asyncio.ensure_future(_release(w.send(large, 1))) for w in lost]
            waiting += [asyncio.ensure_future(_release(w.recv(small, 1))) for w in lost]
            await _told(context, "waiting")
            after = await _paces(kept, small, scene.turns)
            return Seen(before, after, max(await asyncio.gather(*waiting)))

    return asyncio.run(main())


def follower(context: Context, scene: Scene, name: str) -> None:
    """Be the other member of the worlds of that name; says its process once all of them have a communicator."""

    async def main() -> None:
        async with _multiworld(name) as mw:
            count, turns = (scene.kept, _FIRST_TURNS + 2 * scene.turns) if name == "kept" else (scene.lost, 0)
            worlds = [await _join(mw, scene, f"{name}{number}", 1) for number in range(count)]
            small, large = torch.zeros(1 << 10).to(_DEVICE), torch.zeros(_ELEMENTS).to(_DEVICE)
            for w in worlds:
                await w.recv(small, 0)
            context.send(os.getpid())
            for _ in range(turns):
                for w in worlds:
                    await w.recv(small, 0)
            if name == "lost":
                await asyncio.gather(*(w.recv(large, 0) for w in worlds))

    asyncio.run(main())


def _multiworld(host: str) -> MultiWorld:
    os.environ["NCCL_HOSTID"] = host  # the members share the device
    return MultiWorld(op_timeout=_SECONDS)


async def _join(mw: MultiWorld, scene: Scene, name: str, rank: int) -> World:
    return await mw.join(name, rank, 2, store=f"file://{scene.folder}/store", backend=scene.backend, device=_DEVICE)


async def _told(context: Context, what: str) -> None:
    context.send(what)
    await asyncio.to_thread(context.recv, _SECONDS)


async def _paces(worlds: list[World], tensor: torch.Tensor, turns: int) -> list[float]:
    seconds = []
    for _ in range(turns):
        for w in worlds:
            began = time.perf_counter()
            await w.send(tensor, 1)
            seconds.append(time.perf_counter() - began)
    return seconds


async def _release(operation: Awaitable[object]) -> float:
    """When the operation raised."""
    try:
        await operation
    except PeerLost:
        return time.monotonic()
    raise RuntimeError("an operation with a dead peer ended well")
