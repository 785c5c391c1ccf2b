"""A group of members of one world: all operations, awaitable, and their synchronous twins."""

from __future__ import annotations

from multiworld.api.collectives import AsyncCollectives
from multiworld.api.point_to_point import AsyncPointToPoint
from multiworld.api.sync import SyncGroup
from multiworld.ops.base import GroupWorld


class Group(AsyncPointToPoint, AsyncCollectives):
    """Some or all members of a world. Made by ``World.group``; a ``World`` is the group of all its members.

    It lives and breaks with its world, and works again after the world's ``rejoin()``.
    """

    def __init__(self, world: GroupWorld, ranks: tuple[int, ...], gid: int, digest: int = 0) -> None:
        self._world = world
        self.ranks = ranks
        self.gid = gid
        self.digest = digest
        self._sync_group = SyncGroup(self)

    @property
    def sync(self) -> SyncGroup:
        """The synchronous twins of all operations."""
        return self._sync_group

    def __repr__(self) -> str:
        return f"Group(world={self._world.name!r}, ranks={self.ranks})"
