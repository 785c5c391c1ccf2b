"""A world as a process group: one object over all generations, works with typed errors, torch's tables."""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from procs import cluster, wait_until
from table import SOON, members

from multiworld import BrokenWorldException, InvalidArgument, OpTimeout, PeerLost, TensorMismatch, WorldClosed
from multiworld.torch import registration


def total(pg: Any, value: float = 1.0) -> float:
    tensor = torch.full((3,), value)
    dist.all_reduce(tensor, group=pg)
    return float(tensor[0])


def test_one_per_group_cached_and_registered(store: str) -> None:
    with members(store, 2) as (worlds, pool):
        groups = [world.process_group for world in worlds]
        assert groups[0] is worlds[0].process_group
        assert worlds[0].group([0]).process_group is not groups[0]
        assert (groups[0].group_name, dist.get_backend(groups[0])) == ("mw:w:0", "multiworld")
        assert dist.get_process_group_ranks(groups[1]) == [0, 1]
        assert (groups[1].rank(), groups[1].size(), dist.get_world_size(groups[1])) == (1, 2, 2)
        assert list(pool.map(total, groups)) == [2.0, 2.0]
        assert not dist.is_initialized()


def test_forgotten_when_the_world_is_left(store: str) -> None:
    with members(store, 2) as (worlds, _):
        pg = worlds[0].process_group
        assert pg in registration._tables.pg_map
        worlds[0].sync.leave()
        assert pg not in registration._tables.pg_map
        with pytest.raises(WorldClosed):
            pg.allreduce([torch.ones(1)])


def test_the_same_object_in_the_next_generation(store: str) -> None:
    """Works of the generation that broke have failed, and what is begun afterwards is of the next one."""
    with members(store, 2) as (worlds, pool):
        groups = [world.process_group for world in worlds]
        old = groups[0].recv([torch.zeros(1)], 1, 0)
        future = old.get_future()
        groups[1].abort()
        wait_until(lambda: groups[0].errored() is not None, SOON, "it does not break")
        list(pool.map(lambda pg: pg.rejoin(), groups))
        assert [pg.generation for pg in groups] == [2, 2]
        assert groups[0].errored() is None
        groups[1].send([torch.full((1,), 5.0)], 0, 0)  # the old receive does not take it
        got = torch.zeros(1)
        groups[0].recv([got], 1, 0).wait()
        assert got.item() == 5.0
        with pytest.raises(PeerLost, match="generation 1"):
            old.wait()
        with pytest.raises(Exception, match="rank 1"):
            future.wait()
        assert isinstance(old.exception(), PeerLost)
        assert (old.is_completed(), old.is_success()) == (True, False)


def test_another_rank_and_size(store: str) -> None:
    with members(store, 3) as (worlds, pool):
        groups = [world.process_group for world in worlds]
        worlds[0].sync.leave()
        list(pool.map(lambda rank: groups[1 + rank].rejoin(rank=rank, size=2), range(2)))
        assert [(pg.rank(), pg.size()) for pg in groups[1:]] == [(0, 2), (1, 2)]
        assert dist.get_process_group_ranks(groups[1]) == [0, 1]
        assert list(pool.map(total, groups[1:])) == [2.0, 2.0]


def test_no_other_size_while_a_mesh_refers_to_it(store: str) -> None:
    from torch.distributed.device_mesh import init_device_mesh

    with members(store, 1) as ((world,), _):
        pg = world.process_group_as_default()
        mesh = init_device_mesh("cpu", (1,))
        with pytest.raises(InvalidArgument, match="DeviceMesh"):
            pg.rejoin(size=2)
        assert mesh.size() == 1
        assert total(None) == 1.0
        dist.destroy_process_group()


def test_never_a_second_default_group(store: str) -> None:
    with members(store, 2) as ((first, second), _):
        assert first.process_group_as_default() is dist.group.WORLD
        try:
            with pytest.raises(InvalidArgument, match="default process group already"):
                second.process_group_as_default()
            assert first.process_group_as_default() is first.process_group
        finally:
            dist.destroy_process_group()
        assert not dist.is_initialized()


def test_typed_errors_at_once(store: str) -> None:
    with members(store, 2) as (worlds, pool):
        groups = [world.process_group for world in worlds]
        with pytest.raises(InvalidArgument, match="rank of 0 to 1"):
            groups[0].send([torch.ones(1)], 7, 0)
        lengths = pool.map(lambda rank: groups[rank].allreduce([torch.ones(2 + rank)]).exception, range(2))
        works = [found.__self__ for found in lengths]
        for work in works:
            with pytest.raises(TensorMismatch):
                work.wait()
        assert list(pool.map(total, groups)) == [2.0, 2.0]


def test_what_began_before_a_refusal_is_given_up(store: str) -> None:
    """Its tensor is the caller's again, and the next operation is no part of a block that torch does not end."""
    with members(store, 2) as (worlds, _):
        pg, kept = worlds[0].process_group, torch.zeros(1)

        def begin_two() -> None:
            with dist._coalescing_manager(pg, torch.device("cpu")):
                pg.recv([kept], 1, 0)
                pg.recv([torch.zeros(1)], 7, 0)

        with pytest.raises(InvalidArgument):
            begin_two()
        assert not worlds[0].member.session.engine.operations
        assert worlds[0].failure is None
        sending = worlds[1].process_group.send([torch.ones(1)], 0, 0)
        got = torch.zeros(1)
        assert pg.recv([got], 1, 0).wait()
        assert sending.wait()
        assert (kept.item(), got.item()) == (0.0, 1.0)


@pytest.mark.parametrize("how", ["option", "wait", "group"])
def test_a_timeout(store: str, how: str) -> None:
    with members(store, 2) as (worlds, _):
        pg, short = worlds[0].process_group, timedelta(seconds=0.2)
        if how == "group":
            pg.set_timeout(short)
        opts = dist.AllreduceOptions()
        if how == "option":
            opts.timeout = short
        with pytest.raises(OpTimeout, match=r"0\.2 s"):
            pg.allreduce([torch.ones(1)], opts).wait(*([short] if how == "wait" else []))


def test_the_default_of_c10d_is_no_timeout_that_was_set(store: str) -> None:
    with members(store, 2) as (worlds, _):
        for minutes, expected in ((30, None), (20, 1200.0)):
            opts = dist.AllreduceOptions()
            opts.timeout = timedelta(minutes=minutes)
            work = worlds[0].process_group.allreduce([torch.ones(1)], opts)
            assert work.calls[0]._timeout == expected


def test_the_typed_error_behind_another(store: str) -> None:
    with members(store, 2) as (worlds, _):
        pg = worlds[0].process_group
        with pytest.raises(RuntimeError, match="my own"), pg.typed():
            raise RuntimeError("my own")
        worlds[1].abort("enough")

        def callback() -> None:
            try:
                pg.allreduce([torch.ones(1)]).wait()
            except BrokenWorldException as error:
                raise RuntimeError(f"while the callback ran: {error}") from None

        with pytest.raises(PeerLost, match="enough") as caught, pg.typed():
            callback()
        assert isinstance(caught.value.__cause__, RuntimeError)


def test_from_another_thread_and_in_a_running_loop(store: str) -> None:
    import asyncio

    async def inside(pg: Any) -> float:
        return total(pg)

    with members(store, 2) as (worlds, pool):
        other = pool.submit(total, worlds[1].process_group)
        assert asyncio.run(inside(worlds[0].process_group)) == 2.0
        assert other.result(20) == 2.0


def test_in_a_forked_child(store: str) -> None:
    with members(store, 1) as ((world,), _):
        pg = world.process_group
        child = os.fork()
        if not child:
            try:
                pg.allreduce([torch.ones(1)])
            except RuntimeError as error:
                os._exit(7 if "forked" in str(error) else 8)
            os._exit(9)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert total(pg) == 1.0


def test_no_thread_stays(store: str) -> None:
    with members(store, 2) as (worlds, pool):
        groups = [world.process_group for world in worlds]
        works = list(pool.map(lambda pg: pg.allreduce([torch.ones(1)]), groups))
        for work in works:
            work.get_future().wait()
    wait_until(
        lambda: not any(thread.name.startswith("mw-works") for thread in threading.enumerate()), SOON, "threads stay"
    )


# init_process_group


def initialized(context: Any, rank: int, size: int, store: str) -> None:
    """Be a rank of a program that knows torch.distributed only."""
    import multiworld.torch  # noqa: F401 - the backend

    where = dist.FileStore(store, size)
    dist.init_process_group("multiworld", store=where, rank=rank, world_size=size, timeout=timedelta(seconds=20))
    first, both = dist.new_group([0]), dist.new_group(list(range(size)))
    assert both.world is not dist.group.WORLD.world
    sums = total(None), total(both), total(first) if rank == 0 else 1.0
    context.send((sums, dist.get_rank(), type(dist.group.WORLD).__name__))
    context.recv(60.0)
    if rank:
        os._exit(1)
    with pytest.raises(PeerLost, match="rank 1"):
        total(both)
    with pytest.raises(PeerLost, match="rank 1"):
        total(None)
    dist.destroy_process_group()
    context.send("over")


def test_init_process_group(tmp_path: Path) -> None:
    with cluster() as workers:
        for rank in range(2):
            workers.start(initialized, rank, 2, f"{tmp_path}/file")
        answers = [worker.recv() for worker in workers.procs]
        assert answers == [((2.0, 2.0, 1.0), rank, "WorldProcessGroup") for rank in range(2)]
        for worker in reversed(workers.procs):
            worker.send("go on")
        assert workers.procs[0].recv() == "over"
