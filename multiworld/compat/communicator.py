"""``WorldCommunicator``: the operations of all worlds by name, as programs for pymultiworld 0.2.3 call them."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from typing import Any, Protocol, TypeAlias

import torch
from torch.distributed import ReduceOp

from multiworld.config import WorldState
from multiworld.errors import BrokenWorldException, InvalidArgument, TensorMismatch, rebuilt
from multiworld.worlds.world import World

__all__ = ["DEFAULT_WORLD_NAME", "BrokenWorldException", "MismatchInWorld", "WorldCommunicator"]

#: the name that stood for "no name given"
DEFAULT_WORLD_NAME = ""
Tensors: TypeAlias = Sequence[torch.Tensor]
Reduction: TypeAlias = "ReduceOp | ReduceOp.RedOpType"


class MismatchInWorld(TensorMismatch, BrokenWorldException):
    """A ``TensorMismatch`` that programs for pymultiworld catch as before; the world stays usable."""


async def _as_before(operation: Awaitable[Any]) -> None:
    try:
        await operation
    except TensorMismatch as error:
        raise rebuilt(MismatchInWorld, vars(error)) from None


class Worlds(Protocol):
    """Holder of worlds by their names: ``WorldManager``, or a ``MultiWorld``."""

    @property
    def worlds(self) -> Mapping[str, World]: ...


class WorldCommunicator:
    """Operations in a world that is named by the last argument. Made by ``WorldManager``.

    Every coroutine raises ``BrokenWorldException``, which names the world, once the world is broken or gone, and its
    subclass ``MismatchInWorld`` where the members disagree.
    """

    def __init__(self, world_manager: Worlds) -> None:
        self._worlds = world_manager

    def add_world(self, world_name: str, backend: str) -> None:
        """Nothing to do here any more; ``WorldManager`` calls it."""

    def remove_world(self, world_name: str) -> None:
        """Nothing to do here any more; ``WorldManager`` calls it."""

    def is_broken(self, world_name: str) -> bool:
        """Return whether the world is broken, was removed, or never was."""
        world = self._worlds.worlds.get(world_name)
        return world is None or world.state is not WorldState.ACTIVE

    async def send(self, tensor: torch.Tensor, dst: int, world_name: str = DEFAULT_WORLD_NAME) -> None:
        await _as_before(self._world(world_name).send(tensor, dst))

    async def recv(self, tensor: torch.Tensor, src: int, world_name: str = DEFAULT_WORLD_NAME) -> None:
        await _as_before(self._world(world_name).recv(tensor, src))

    async def broadcast(self, tensor: torch.Tensor, src: int, world_name: str = DEFAULT_WORLD_NAME) -> None:
        await _as_before(self._world(world_name).broadcast(tensor, src))

    async def all_reduce(
        self, tensor: torch.Tensor, op: Reduction = ReduceOp.SUM, world_name: str = DEFAULT_WORLD_NAME
    ) -> None:
        await _as_before(self._world(world_name).all_reduce(tensor, op))

    async def reduce(
        self, tensor: torch.Tensor, dst: int, op: Reduction = ReduceOp.SUM, world_name: str = DEFAULT_WORLD_NAME
    ) -> None:
        await _as_before(self._world(world_name).reduce(tensor, dst, op))

    async def all_gather(self, tensors: Tensors, tensor: torch.Tensor, world_name: str = DEFAULT_WORLD_NAME) -> None:
        await _as_before(self._world(world_name).all_gather(tensors, tensor))

    async def gather(
        self,
        tensor: torch.Tensor,
        gather_list: Tensors | None = None,
        dst: int = 0,
        world_name: str = DEFAULT_WORLD_NAME,
    ) -> None:
        await _as_before(self._world(world_name).gather(tensor, gather_list, dst))

    async def scatter(
        self,
        tensor: torch.Tensor,
        scatter_list: Tensors | None = None,
        src: int = 0,
        world_name: str = DEFAULT_WORLD_NAME,
    ) -> None:
        await _as_before(self._world(world_name).scatter(tensor, scatter_list, src))

    def _world(self, world_name: str) -> World:
        if not isinstance(world_name, str):
            raise InvalidArgument(what=f"world_name is {world_name!r}, not text", remedy="pass the name of a world")
        world = self._worlds.worlds.get(world_name)
        if world is None:
            raise BrokenWorldException(
                world_name,
                "this process has no such world",
                cause="it was removed, or was never initialized",
                remedy="call initialize_world first",
            )
        return world
