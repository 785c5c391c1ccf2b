"""``WorldManager``: worlds as programs for pymultiworld 0.2.3 make and use them, on top of ``MultiWorld``."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import queue
import sys
from collections.abc import Mapping

import torch

from multiworld.compat.communicator import WorldCommunicator
from multiworld.compat.watchdog import WatchDog
from multiworld.config import WorldState
from multiworld.worlds.multi_world import MultiWorld
from multiworld.worlds.world import World

logger = logging.getLogger("multiworld")

#: the worlds of pymultiworld never gave an operation up
OP_TIMEOUT = float("inf")


class WorldManager:
    """Makes, finds and removes worlds.

    Args:
        enable_monitor: whether a ``WatchDog`` removes broken worlds, as in pymultiworld. A break is noticed in
            any case.
    """

    def __init__(self, enable_monitor: bool = True) -> None:
        _log_as_asked()
        self._worlds = MultiWorld(op_timeout=OP_TIMEOUT)
        #: by name, broken ones included
        self.worlds: Mapping[str, World] = self._worlds.worlds
        self.communicator = WorldCommunicator(self)
        self._announced: set[str] = set()
        self._watchdog: WatchDog | None = None
        if enable_monitor:
            self._watchdog = WatchDog(queue.Queue(), asyncio.Queue())
            self._watchdog.watch(self._worlds, self._world_broke)

    async def initialize_world(
        self,
        world_name: str,
        rank: int,
        world_size: int,
        backend: str = "gloo",
        addr: str = "127.0.0.1",
        port: int = -1,
        timeout: int = 30,
        device: torch.device = torch.device("cpu"),  # noqa: B008 - the signature is fixed by existing programs
    ) -> None:
        """Join a world; returns when all ``world_size`` members have.

        Args:
            world_name: the world's name, new in this process, or broken before.
            rank: ours, from 0.
            backend: ``"gloo"`` or ``"nccl"``.
            addr: address of rank 0, which hosts the store.
            port: port of the store.
            timeout: seconds to wait for the others.

        Raises:
            ValueError: there is a world of this name.
            RendezvousError: the others did not come, or disagree.
        """
        self.add_world(world_name, backend)
        try:
            how = {"store": f"tcp://{addr}:{port}", "backend": backend, "device": device, "join_timeout": timeout}
            await self._worlds.join(world_name, rank, world_size, **how)
        except BaseException:
            self._announced.discard(world_name)
            raise

    def add_world(self, world_name: str, backend: str) -> None:
        """Announce a world that ``initialize_world`` will join; raises ``ValueError`` if it exists."""
        world = self.worlds.get(world_name)
        if world is not None and world.state is not WorldState.ACTIVE:
            world.member.leave(0.0)
        elif world is not None or world_name in self._announced:
            raise ValueError(f"World {world_name} already exists.")
        self._announced.add(world_name)
        self.communicator.add_world(world_name, backend)

    def remove_world(self, world_name: str) -> None:
        """Leave a world; raises ``ValueError`` if it does not exist."""
        if world_name not in self._announced:
            raise ValueError(f"World {world_name} does not exist.")
        self._announced.remove(world_name)
        self.communicator.remove_world(world_name)
        world = self.worlds.get(world_name)
        if world is not None and world.state is WorldState.ACTIVE:
            world.member.leave()

    def cleanup(self) -> None:
        """Leave all worlds and free everything. Unlike pymultiworld's it returns, and the program goes on."""
        if self._watchdog is not None:
            self._watchdog.close()
        self._worlds.__exit__()
        self._announced.clear()
        sys.stdout.flush()

    def _world_broke(self, world_name: str) -> None:
        """Its name is free for ``initialize_world`` again; operations go on raising the first cause."""
        world = self.worlds.get(world_name)
        if world is None or world.state is not WorldState.BROKEN:
            return  # the program was faster: it has removed this world, or made it again
        with contextlib.suppress(ValueError):
            self.remove_world(world_name)


def _log_as_asked() -> None:
    """``M8D_LOG_LEVEL`` sets the level of the package's own logger; where messages go stays the program's choice."""
    level = os.environ.get("M8D_LOG_LEVEL", "").upper()
    if isinstance(logging.getLevelName(level), int):
        logger.setLevel(level)
    elif level:
        logger.warning("M8D_LOG_LEVEL=%s is not a log level; known are DEBUG, INFO, WARNING, ERROR, CRITICAL", level)
