"""Collectives of objects: pickles travel with the fingerprints, and are loaded only as far as the receiver allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from multiworld.matching.collective_plan import Bytes, Collective, Fingerprint, Parts, Plan
from multiworld.operations.collectives import part
from multiworld.serialization.pickling import allowed, dumps, loads
from multiworld.tensors.checks import check_list, check_rank

if TYPE_CHECKING:
    from multiworld.engine.engine import Engine
    from multiworld.matching.membership import GroupMembers
    from multiworld.matching.operation import Operation

Allow = Sequence[type | str]


def _start(
    engine: Engine,
    group: GroupMembers,
    kind: Collective,
    root: int,
    outgoing: Callable[[int], Bytes | None],
    result: Callable[[Parts], Any],
) -> Operation:
    plan = Plan(kind.name.lower(), Fingerprint(kind, root=root), outgoing, lambda parts: parts, finish=result)
    return engine.collective(group, plan)


def broadcast_object(engine: Engine, group: GroupMembers, obj: Any, src: int, allow: Allow) -> Operation:
    src = check_rank(group, "broadcast_object", "src", src)
    names = allowed(allow, engine.membership, "broadcast_object")
    ours = group.rank == src
    data = dumps(obj, engine.membership, "broadcast_object") if ours else None

    def result(parts: Parts) -> Any:
        return obj if ours else loads(part(parts, src), names, engine.membership)

    return _start(engine, group, Collective.BROADCAST_OBJECT, src, lambda _: data, result)


def all_gather_object(engine: Engine, group: GroupMembers, obj: Any, allow: Allow) -> Operation:
    return _gathered(engine, group, Collective.ALL_GATHER_OBJECT, obj, None, allow)


def gather_object(engine: Engine, group: GroupMembers, obj: Any, dst: int, allow: Allow) -> Operation:
    dst = check_rank(group, "gather_object", "dst", dst)
    return _gathered(engine, group, Collective.GATHER_OBJECT, obj, dst, allow)


def _gathered(
    engine: Engine, group: GroupMembers, kind: Collective, obj: Any, dst: int | None, allow: Allow
) -> Operation:
    """Start a gather of objects to ``dst``; to every rank if None."""
    names = allowed(allow, engine.membership, kind.name.lower())
    data = dumps(obj, engine.membership, kind.name.lower())

    def result(parts: Parts) -> list[Any] | None:
        if dst not in (None, group.rank):
            return None
        return [obj if one is None else loads(one, names, engine.membership) for one in parts]

    root = -1 if dst is None else dst
    return _start(engine, group, kind, root, lambda place: data if dst in (None, place) else None, result)


def scatter_object(
    engine: Engine, group: GroupMembers, objs: Sequence[Any] | None, src: int, allow: Allow
) -> Operation:
    src = check_rank(group, "scatter_object", "src", src)
    names = allowed(allow, engine.membership, "scatter_object")
    ours = group.rank == src
    if ours or objs is not None:
        check_list(group, "scatter_object", "objs", objs, group.size)
    data = [dumps(one, engine.membership, "scatter_object") for one in objs] if ours and objs is not None else []

    def result(parts: Parts) -> Any:
        return objs[src] if ours and objs is not None else loads(part(parts, src), names, engine.membership)

    return _start(engine, group, Collective.SCATTER_OBJECT, src, lambda place: data[place] if ours else None, result)
