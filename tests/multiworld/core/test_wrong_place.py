"""Calls that cannot work: a synchronous twin in the thread of a loop, a world given to torch, a join that fails."""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import ANY

import pytest
import torch
import torch.distributed as dist
from procs import cluster

import multiworld
from multiworld import InvalidArgument, MultiWorld, RendezvousError, World, WrongContext
from multiworld.lab.context import Context

TWINS: dict[str, Callable[[World], Any]] = {
    "barrier": lambda w: w.sync.barrier(),
    "recv": lambda w: w.sync.recv(torch.zeros(1), 0),
    "all_reduce": lambda w: w.group([0]).sync.all_reduce(torch.zeros(1)),
    "synchronize": lambda w: w.sync.synchronize(),
    "rejoin": lambda w: w.sync.rejoin(),
    "leave": lambda w: w.sync.leave(),
    "join": lambda w: w.member.owner.sync.join("other", 0, 2, store="file:///nowhere/store"),  # type: ignore[attr-defined]
    "close": lambda w: w.member.owner.sync.close(),  # type: ignore[attr-defined]
}


@pytest.mark.parametrize("call", TWINS)
def test_a_twin_in_the_thread_of_a_running_loop_is_refused(store: str, call: str) -> None:
    async def main() -> None:
        async with MultiWorld() as mw:
            w = await mw.join("w", 0, 1, store=store)
            with pytest.raises(WrongContext, match="running event loop") as caught:
                TWINS[call](w)
            assert caught.value.operation == call
            assert f"await {'mw' if call in ('join', 'close') else 'world'}.{call}(" in caught.value.remedy
            await w.barrier()  # nothing was begun, and the world is as it was
            await asyncio.to_thread(w.sync.barrier)

    asyncio.run(main())


def test_a_world_is_a_key_and_leaves_comparisons_to_the_other(store: str) -> None:
    with MultiWorld() as mw:
        w = mw.sync.join("w", 0, 1, store=store)
        group = w.group([0])
        assert {w: 1, group: 2}[w] == 1
        assert w != group
        assert w == ANY  # it says so itself, when the world does not know


TENSOR = torch.zeros(2)
#: torch's functions, as they are called with ``group=``; those that a release does not have are left out
TORCH: dict[str, Callable[[Any], Any]] = {
    "all_reduce": lambda w: dist.all_reduce(TENSOR, group=w),
    "broadcast": lambda w: dist.broadcast(TENSOR, 0, group=w),
    "reduce": lambda w: dist.reduce(TENSOR, 0, group=w),
    "all_gather": lambda w: dist.all_gather([TENSOR], TENSOR, group=w),
    "all_gather_into_tensor": lambda w: dist.all_gather_into_tensor(TENSOR, TENSOR, group=w),
    "gather": lambda w: dist.gather(TENSOR, [TENSOR], group=w),
    "scatter": lambda w: dist.scatter(TENSOR, [TENSOR], group=w),
    "reduce_scatter": lambda w: dist.reduce_scatter(TENSOR, [TENSOR], group=w),
    "reduce_scatter_tensor": lambda w: dist.reduce_scatter_tensor(TENSOR, TENSOR, group=w),
    "all_to_all": lambda w: dist.all_to_all([TENSOR], [TENSOR], group=w),
    "all_to_all_single": lambda w: dist.all_to_all_single(TENSOR, TENSOR, group=w),
    "send": lambda w: dist.send(TENSOR, 0, group=w),
    "isend": lambda w: dist.isend(TENSOR, 0, group=w),
    "recv": lambda w: dist.recv(TENSOR, 0, group=w),
    "irecv": lambda w: dist.irecv(TENSOR, 0, group=w),
    "batch_isend_irecv": lambda w: dist.batch_isend_irecv([dist.P2POp(dist.isend, TENSOR, 0, group=w)]),
    "barrier": lambda w: dist.barrier(group=w),
    "monitored_barrier": lambda w: dist.monitored_barrier(group=w),
    "all_gather_object": lambda w: dist.all_gather_object([None], 1, group=w),
    "gather_object": lambda w: dist.gather_object(1, [None], 0, group=w),
    "broadcast_object_list": lambda w: dist.broadcast_object_list([None], 0, group=w),
    "scatter_object_list": lambda w: dist.scatter_object_list([None], [None], 0, group=w),
    "get_rank": dist.get_rank,
    "get_world_size": dist.get_world_size,
    "get_backend": dist.get_backend,
    "get_process_group_ranks": dist.get_process_group_ranks,
    "get_group_rank": lambda w: dist.get_group_rank(w, 0),
    "get_global_rank": lambda w: dist.get_global_rank(w, 0),
    "destroy_process_group": dist.destroy_process_group,
}


def _in_torch(context: Context, store: str, has_default: bool) -> dict[str, str]:
    if has_default:
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    wrong = {}
    with MultiWorld() as mw:
        world = mw.sync.join("w", 0, 1, store=store)
        for name, call in TORCH.items():
            if name == "send" and not has_default:
                continue  # before 2.6 it looks for the default group first, and says that there is none
            with pytest.raises(Exception) as caught:  # noqa: PT011 - of whatever type, what it says is looked at below
                call(world)
            said = str(caught.value)
            if not isinstance(caught.value, InvalidArgument) or "is no ProcessGroup" not in said:
                wrong[name] = repr(caught.value)
            elif "world.all_reduce(tensor)" not in said:
                wrong[name] = said
        assert world in {world: 1}
        assert world != world.group([0])
        world.sync.barrier()
    return wrong


@pytest.mark.parametrize("has_default", [False, True])
def test_a_world_given_to_torch_says_that_it_is_no_process_group(store: str, has_default: bool) -> None:
    with cluster() as c:
        assert c.start(_in_torch, store, has_default).result() == {}


async def _joins(mw: MultiWorld, store: str) -> None:
    await mw.join("other", 0, 2, store=store, join_timeout=0.2)


async def _rejoins(mw: MultiWorld, store: str) -> None:
    await (await mw.join("w", 0, 1, store=store)).rejoin(size=2, timeout=0.2)


FAILURES: dict[str, Callable[[MultiWorld, str], Any]] = {
    "join": lambda mw, store: asyncio.run(_joins(mw, store)),
    "join, synchronous": lambda mw, store: mw.sync.join("other", 0, 2, store=store, join_timeout=0.2),
    "join, no store": lambda mw, store: mw.sync.join("other", 0, 2, store=f"{store}/nowhere", join_timeout=0.2),
    "rejoin": lambda mw, store: asyncio.run(_rejoins(mw, store)),
    "rejoin, synchronous": lambda mw, store: mw.sync.join("w", 0, 1, store=store).sync.rejoin(size=2, timeout=0.2),
}


@pytest.mark.parametrize("call", FAILURES)
def test_the_traceback_of_a_failed_join_shows_the_callers_line_and_the_message(store: str, call: str) -> None:
    package = str(Path(multiworld.__file__).parent)
    with MultiWorld() as mw, pytest.raises(RendezvousError) as caught:
        FAILURES[call](mw, store)
    frames = traceback.extract_tb(caught.value.__traceback__)
    ours = [frame.name for frame in frames if frame.filename.startswith(package)]
    assert len(ours) == 1, "one frame below the caller's"
    assert frames[-2].filename == __file__
    said = "".join(traceback.format_exception(caught.value)).splitlines()
    assert [line[:6] for line in said[-3:]] == ["multiw", "  like", "  what"]
    assert sum(line.startswith("Traceback") for line in said) == 1, "no chain of inner errors"
