"""The arguments and results of ``World.shrink`` and ``World.grow``."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TypeVar

from multiworld.config import whole_number
from multiworld.errors import InvalidArgument, TooFewMembers
from multiworld.worlds.group import Group
from multiworld.worlds.rejoining import Change

if TYPE_CHECKING:
    from multiworld.session.member import Member

Resized = TypeVar("Resized", bound=Group)


def checked_change(member: Member, min_size: int) -> Change:
    """Check the arguments of ``shrink``; raises ``InvalidArgument``."""
    least = whole_number(min_size)
    if least is None or least < 1:
        what = f"min_size is {min_size!r}"
        raise InvalidArgument(
            member.name, what, remedy="pass a number of members", rank=member.world_rank, operation="shrink"
        )
    return Change(least)


def check_resizable(member: Member, groups: Iterable[Group], operation: str) -> None:
    """Raise ``InvalidArgument`` while a DeviceMesh keeps the sizes of ``groups``."""
    for group in groups:
        if group._process_group is not None:
            group._process_group.check_resizable(member.world_rank, operation)


def enough(world: Resized, min_size: int) -> Resized:
    """Return ``world`` if it has ``min_size`` members; a world that is whole may have had fewer before."""
    if world.size < min_size:
        what = f"the world has {world.size} members, and min_size is {min_size}"
        member = world.member
        where = member.session.membership.where("shrink")
        raise TooFewMembers(member.name, what, left=world.size, **where)
    return world
