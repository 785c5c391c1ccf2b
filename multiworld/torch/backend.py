"""``init_process_group("multiworld")`` and ``new_group``: the worlds of torch.distributed's own process groups."""

from __future__ import annotations

import functools
import os
from dataclasses import dataclass
from typing import Any, Literal

import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from multiworld.config import DEFAULT_JOIN_TIMEOUT, Heartbeat
from multiworld.torch.process_group import BACKEND, WorldProcessGroup
from multiworld.torch.quorum import ReconfigurableProcessGroup
from multiworld.worlds.multi_world import MultiWorld


@dataclass(frozen=True)
class Options:
    """Settings of a process group: ``init_process_group("multiworld", pg_options=Options(...))``.

    Args:
        subgroups: ``"own"`` lets a ``new_group`` be a world of its own, which breaks alone. ``"share"`` makes it a
            group of the default group's world: it costs nothing, and breaks with it. So do all subgroups of a default
            group that is a world of the program's.
        backend: of the world, see ``MultiWorld.join``; so are the others.
        device: of the tensors.
        heartbeat: the times after which a silent peer is lost.
        join_timeout: seconds until the members have met.
    """

    subgroups: Literal["own", "share"] = "own"
    backend: str = "gloo"
    device: str | None = None
    heartbeat: Heartbeat | None = None
    join_timeout: float = DEFAULT_JOIN_TIMEOUT


@functools.cache
def home(_pid: int) -> MultiWorld:
    """Return the ``MultiWorld`` of the worlds that torch.distributed makes in a process; it ends with the process."""
    return MultiWorld()


def create(given: Any, options: Options | None) -> WorldProcessGroup:
    """Make the process group that torch.distributed asks for; ``given`` has its ranks, its store and its name."""
    options, default = options or Options(), c10d.GroupMember.WORLD
    if getattr(given, "enable_reconfigure", False):  # torch 2.14 and newer
        place = given.group_id, given.group_rank, given.group_size
        return ReconfigurableProcessGroup(given.store, *place, given.timeout, options.backend, options.device)
    if isinstance(default, WorldProcessGroup) and (options.subgroups == "share" or default.is_callers):
        group = default.world.group(given.global_ranks_in_group, label=f"c10d-{given.group_id}")
        return WorldProcessGroup(group, given.group_id)
    world = home(os.getpid()).sync.join(
        f"c10d-{given.group_id}",
        given.group_rank,
        given.group_size,
        store=given.store,
        backend=options.backend,
        device=options.device,
        op_timeout=given.timeout.total_seconds(),
        heartbeat=options.heartbeat,
        join_timeout=options.join_timeout,
    )
    return WorldProcessGroup(world, given.group_id, world.sync.leave)


def register() -> None:
    """Let torch.distributed know the backend; torch 2.14 and newer calls this by itself."""
    if BACKEND not in dist.Backend.backend_list:
        dist.Backend.register_backend(BACKEND, create, extended_api=True, devices=["cpu", "cuda"])
