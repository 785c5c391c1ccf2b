"""Starters of collectives of objects: pickles that travel with the signatures, loaded only as far as the receiver
allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from multiworld.matching.plan import Bytes, Collective, Parts, Plan, signature
from multiworld.ops.collectives import part, start
from multiworld.ops.memory import check_list, check_rank
from multiworld.ops.pickling import allowed, dumps, loads

if TYPE_CHECKING:
    from multiworld.matching.operation import Operation
    from multiworld.ops.base import GroupBase
    from multiworld.session import Session

Allow = Sequence[type | str]


def _start(
    session: Session,
    group: GroupBase,
    name: str,
    kind: Collective,
    root: int,
    outgoing: Callable[[int], Bytes | None],
    result: Callable[[Parts], Any],
) -> Operation:
    plan = Plan(name, signature(kind, root=root), outgoing, lambda parts: parts, finish=result)
    return start(session, group, plan)


def broadcast_object(session: Session, group: GroupBase, obj: Any, src: int, allow: Allow) -> Operation:
    """Start ``Group.broadcast_object``."""
    src = check_rank(group, "broadcast_object", "src", src)
    names = allowed(allow, session, "broadcast_object")
    ours = group.rank == src
    data = dumps(obj, session, "broadcast_object") if ours else None

    def result(parts: Parts) -> Any:
        return obj if ours else loads(part(parts, src), names, session)

    return _start(session, group, "broadcast_object", Collective.BROADCAST_OBJECT, src, lambda _: data, result)


def all_gather_object(session: Session, group: GroupBase, obj: Any, allow: Allow) -> Operation:
    """Start ``Group.all_gather_object``."""
    data = dumps(obj, session, "all_gather_object")
    names = allowed(allow, session, "all_gather_object")

    def result(parts: Parts) -> list[Any]:
        return [obj if one is None else loads(one, names, session) for one in parts]

    return _start(session, group, "all_gather_object", Collective.ALL_GATHER_OBJECT, -1, lambda _: data, result)


def gather_object(session: Session, group: GroupBase, obj: Any, dst: int, allow: Allow) -> Operation:
    """Start ``Group.gather_object``."""
    dst = check_rank(group, "gather_object", "dst", dst)
    names = allowed(allow, session, "gather_object")
    data = dumps(obj, session, "gather_object")

    def result(parts: Parts) -> list[Any] | None:
        if group.rank != dst:
            return None
        return [obj if one is None else loads(one, names, session) for one in parts]

    return _start(
        session,
        group,
        "gather_object",
        Collective.GATHER_OBJECT,
        dst,
        lambda place: data if place == dst else None,
        result,
    )


def scatter_object(session: Session, group: GroupBase, objs: Sequence[Any] | None, src: int, allow: Allow) -> Operation:
    """Start ``Group.scatter_object``."""
    src = check_rank(group, "scatter_object", "src", src)
    names = allowed(allow, session, "scatter_object")
    ours = group.rank == src
    if ours or objs is not None:
        check_list(group, "scatter_object", "objs", objs, group.size)
    data = [dumps(one, session, "scatter_object") for one in objs] if ours and objs is not None else []

    def result(parts: Parts) -> Any:
        return objs[src] if ours and objs is not None else loads(part(parts, src), names, session)

    return _start(
        session,
        group,
        "scatter_object",
        Collective.SCATTER_OBJECT,
        src,
        lambda place: data[place] if ours else None,
        result,
    )
