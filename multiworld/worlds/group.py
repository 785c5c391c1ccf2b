"""A group of members of one world: all operations, awaitable, and their synchronous twins."""

from __future__ import annotations

import sys
from types import FrameType

from torch.distributed import distributed_c10d

from multiworld.errors import InvalidArgument
from multiworld.operations.base import GroupWorld
from multiworld.worlds.collectives import AsyncCollectives
from multiworld.worlds.point_to_point import AsyncPointToPoint
from multiworld.worlds.twins import SyncGroup


class Group(AsyncPointToPoint, AsyncCollectives):
    """Some or all members of a world. Made by ``World.group``; a ``World`` is the group of all its members.

    It lives and breaks with its world, and works again after the world's ``rejoin()``. ``timeout`` is in seconds, None
    is the world's ``op_timeout``; when it passes, the world breaks with ``OpTimeout``. All operations raise
    ``PeerLost``, ``OpTimeout`` and ``WorldClosed`` on a broken or closed world, and ``InvalidArgument`` at once for
    arguments that cannot be right. After an operation has returned or raised, its tensors are the caller's: nothing
    here reads or writes them.

    **Messages** start when they are awaited, in the order of the awaits, per peer and tag. A send waits until its
    receive is posted and both agree on length and dtype; no payload moves before that. A cancelled await breaks nothing
    and loses no message. What the peer has not matched yet is withdrawn. A send that is matched goes on from a copy. A
    message that is on its way is kept for the next receive of that peer and tag; the cancelled receive's tensor may
    hold a part of it.

    **Collectives** are called by every member, in the same order; ranks are those of this group. Before any payload
    moves the members compare what they were called with. If anything differs, all of them raise ``TensorMismatch`` and
    the world stays usable.

    A cancelled collective breaks the world, because the other members count on it: all of them get a ``PeerLost`` whose
    ``how`` is ``"cancelled"``. In a world that was joined with ``on_cancel="finish"`` it goes on without its caller.
    Until all members have called it, the await ends at once and the collective goes on with copies. While the backend
    works on it, the await ends when the collective does; a member's 512 KB to all others together need no backend.
    Either way the tensors that were to be written are undefined.

    **CUDA tensors**, in a world whose backend works on a CUDA device, go from device to device, and CPU tensors over
    the lanes, whatever their length; all members pass the same kind. Nothing is launched before all have called, so
    what waits for its peer costs the device nothing. An operation begins when the caller's current stream has come to
    where it was when the operation was called. What the caller enqueues in its current stream after the operation finds
    it done. What is matched on the device cannot be withdrawn: a cancelled await ends when that transfer does.

    With ``stream=True`` the operation returns when it is matched and enqueued, not when it is done: the caller's stream
    waits for it, the caller does not. If such an operation fails, the world breaks: the next operation,
    ``World.synchronize`` and ``WorldBroken`` say why. On the CPU ``stream`` changes nothing.
    """

    def __init__(self, world: GroupWorld, ranks: tuple[int, ...], gid: int, digest: int = 0) -> None:
        self._world = world
        self.ranks = ranks
        self.gid = gid
        self.digest = digest
        self._sync_group = SyncGroup(self)

    def __eq__(self, other: object) -> bool:
        self._refuse_torch(sys._getframe(1))
        return object.__eq__(self, other)

    def __hash__(self) -> int:
        self._refuse_torch(sys._getframe(1))
        return object.__hash__(self)

    def _refuse_torch(self, caller: FrameType) -> None:
        """Raise if ``torch.distributed`` asks: it compares or looks up every group that it is given, first of all."""
        if caller.f_globals is vars(distributed_c10d):
            name = self._world.name
            raise InvalidArgument(
                name,
                f"{self!r} is no ProcessGroup, and the functions of torch.distributed take nothing else",
                cause="a world, or a group of it, was given to one of torch's own functions",
                remedy="call the operation of the world itself: await world.all_reduce(tensor), or "
                "world.sync.all_reduce(tensor); what needs a ProcessGroup takes one of torch.distributed.new_group",
                rank=self._world.world_rank,
            ) from None

    @property
    def sync(self) -> SyncGroup:
        """The synchronous twins of all operations."""
        return self._sync_group

    def __repr__(self) -> str:
        return f"Group(world={self._world.name!r}, ranks={self.ranks})"
