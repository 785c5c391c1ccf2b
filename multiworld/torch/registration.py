"""The tables of torch.distributed: without an entry, root ranks, ``get_rank``, DeviceMesh and compiled code fail."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any, Final

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from multiworld.errors import InvalidArgument

_tables: Final[Any] = c10d._world
#: names that no other group can use: torch before 2.3 keeps in C++ what was registered
_kept: Final[dict[str, weakref.ref[dist.ProcessGroup]]] = {}
#: also where C++ looks a group up by its name
_register: Final = torch._C._distributed_c10d._register_process_group
_unregister: Final = getattr(torch._C._distributed_c10d, "_unregister_process_group", None)
_hidden: Final[list[object]] = []


def free_name(name: str) -> str:
    """Return ``name``, or what is like it: two members of one world may be in one process."""
    taken = {*_tables.pg_names.values(), *_kept}
    return next(one for one in (name, *(f"{name}:{number}" for number in range(2, len(taken) + 3))) if one not in taken)


def register(pg: dist.ProcessGroup, name: str) -> None:
    """Enter ``pg`` under ``name``, or take over its new ranks. Its own ranks are what root ranks mean."""
    if is_known(pg):
        refresh(pg)
        return
    _tables.pg_group_ranks[pg] = {rank: rank for rank in range(pg.size())}
    backend = dist.Backend("multiworld")
    # Its members have met already, and its subgroups need no store: see ``backend.create``.
    _tables.pg_map[pg] = (backend, dist.HashStore())
    _tables.pg_names[pg] = name
    _tables.pg_backend_config[pg] = str(c10d.BackendConfig(backend))
    _tables.pg_to_tag[pg] = tag = f"ptd:{name}"
    _tables.tags_to_pg.setdefault(tag, []).append(pg)
    if name not in _kept or _kept[name]() is not pg:
        _register(name, pg)
    if _unregister is None:
        _kept[name] = weakref.ref(pg)


def is_known(pg: dist.ProcessGroup) -> bool:
    """Whether torch.distributed has entered ``pg``."""
    return pg in _tables.pg_map


def refresh(pg: dist.ProcessGroup) -> None:
    """Take over the ranks of a new generation where they are the group's own, as those of a default group are."""
    ranks = _tables.pg_group_ranks.get(pg)
    if ranks is not None and all(ours == theirs for ours, theirs in ranks.items()):
        _tables.pg_group_ranks[pg] = {rank: rank for rank in range(pg.size())}


def unregister(pg: dist.ProcessGroup, name: str) -> None:
    """Forget ``pg``, unless torch.distributed has."""
    if _tables.pg_map.pop(pg, None) is None:
        return
    for table in (_tables.pg_names, _tables.pg_backend_config, _tables.pg_group_ranks, _tables.pg_coalesce_state):
        table.pop(pg, None)
    _tables.tags_to_pg.pop(_tables.pg_to_tag.pop(pg, None), None)
    if c10d.GroupMember.WORLD is pg:
        set_default(None)
    if _unregister is not None:
        _unregister(name)


def become_default(pg: dist.ProcessGroup) -> None:
    """Make ``pg`` what ``torch.distributed`` uses where no group is given.

    Raises:
        InvalidArgument: there is another default process group.
    """
    present = c10d.GroupMember.WORLD
    register(pg, pg.group_name)  # destroy_process_group() may have forgotten it
    if present is pg:
        return
    if present is not None:
        what = "there is a default process group already"
        cause = "init_process_group() was called, or another world became the default"
        remedy = "pass group=world.process_group to each call, or destroy_process_group() first"
        raise InvalidArgument(None, what, cause=cause, remedy=remedy)
    set_default(pg)


def set_default(pg: dist.ProcessGroup | None) -> None:
    """Let ``group.WORLD`` be ``pg``."""
    update = getattr(c10d, "_update_default_pg", None)
    if update is None:  # torch before 2.3
        c10d.GroupMember.WORLD = c10d.group.WORLD = pg
    else:
        update(pg)


def hide_from_dynamo() -> None:
    """Let torch.compile not look into this package, once it is loaded: C++ that it runs calls us back."""
    rules = sys.modules.get("torch._dynamo.trace_rules")
    if rules is not None and not _hidden:
        _hidden.append(rules)
        getattr(rules, "add", lambda _: None)("multiworld")


def mesh_of(name: str) -> str | None:
    """Find a DeviceMesh that refers to the process group ``name``, in words."""
    from torch.distributed.device_mesh import DeviceMesh  # not above: few programs need it

    for mesh in [one for one in gc.get_objects() if isinstance(one, DeviceMesh)]:
        infos = getattr(mesh, "_dim_group_infos", [])  # tag, ranks, and from torch 2.3 on the name
        names = getattr(mesh, "_dim_group_names", None) or [(*info, info[0].removeprefix("ptd:"))[2] for info in infos]
        if name in names:
            return repr(mesh)
    return None
