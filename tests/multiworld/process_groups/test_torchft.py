"""The demands that torchft publishes for a process group: shapes, futures, quorums that follow each other, a loss."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import distributed_c10d as c10d

from multiworld import InvalidArgument, MultiWorldError, PeerLost, RendezvousError
from multiworld.torch import TorchftProcessGroup

Pg = TorchftProcessGroup


@pytest.fixture
def host(tcp_store: str) -> str:
    """``host:port`` of a store that torch hosts."""
    return tcp_store.removeprefix("tcp://")


@pytest.fixture
def three(host: str) -> Iterator[tuple[list[Pg], Callable[..., list[Any]]]]:
    """Three members of a quorum, and what runs a function with each at once."""
    groups = [TorchftProcessGroup(timedelta(seconds=20)) for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:

        def each(function: Callable[[Pg, int], Any]) -> list[Any]:
            return list(pool.map(function, groups, range(3)))

        each(lambda pg, rank: pg.configure(f"{host}/first", rank, 3))
        yield groups, each
        for pg in groups:
            pg.shutdown()


def every_operation(pg: Pg, tensor: torch.Tensor) -> list[tuple[str, Any]]:
    """Each collective of a group of one, begun with the options that torch makes."""
    out, more = [[torch.empty_like(tensor)]], [torch.empty_like(tensor)]
    splits = [tensor.shape[0]]
    calls: list[tuple[str, tuple[Any, ...]]] = [
        ("allreduce", ([tensor.clone()], dist.AllreduceOptions())),
        ("allreduce", ([tensor.clone()], dist.ReduceOp.SUM)),
        ("allreduce_coalesced", ([tensor.clone(), tensor.clone()], c10d.AllreduceCoalescedOptions())),
        ("allgather", (out, [tensor], c10d.AllgatherOptions())),
        ("allgather_into_tensor_coalesced", (more, [tensor], c10d.AllgatherOptions())),
        ("_allgather_base", (more[0], tensor, c10d.AllgatherOptions())),
        ("alltoall_base", (more[0], tensor, splits, splits, dist.AllToAllOptions())),
        ("broadcast", ([tensor.clone()], c10d.BroadcastOptions())),
        ("broadcast_one", (tensor.clone(), 0)),
        ("reduce_scatter", (more, [[tensor]], c10d.ReduceScatterOptions())),
        ("reduce_scatter_tensor_coalesced", (more, [tensor], c10d.ReduceScatterOptions())),
        ("barrier", (c10d.BarrierOptions(),)),
    ]
    return [(name, getattr(pg, name)(*arguments)) for name, arguments in calls]


@pytest.mark.parametrize("tensor", [torch.tensor([2]), torch.randn(2, 3)], ids=["integers", "matrix"])
def test_shapes_and_futures(host: str, tensor: torch.Tensor) -> None:
    pg = TorchftProcessGroup()
    assert (pg.rank(), pg.size()) == (0, 1)
    assert isinstance(pg.errored(), MultiWorldError)
    pg.configure(f"{host}/alone", "replica", 0, 1)
    for name, work in every_operation(pg, tensor):
        assert work.wait(), name
        for found in work.get_future().wait():
            assert (found.shape, found.dtype) == (tensor.shape, tensor.dtype), name
    pg.shutdown()


@pytest.mark.nightly("test_matrix.py::test_rows, on the group that this one is made of")
def test_ddp(host: str) -> None:
    pg = TorchftProcessGroup()
    pg.configure(f"{host}/ddp", 0, 1)
    net = nn.parallel.DistributedDataParallel(nn.Linear(3, 4), process_group=pg)
    assert net(torch.rand(2, 3)).shape == (2, 4)
    pg.shutdown()


def test_quorums_that_follow_each_other(host: str, three: tuple[list[Pg], Callable[..., list[Any]]]) -> None:
    groups, each = three

    def total(pg: Pg, rank: int) -> float:
        tensor = torch.full((2,), rank + 1.0)
        pg.allreduce([tensor], dist.ReduceOp.SUM).wait()
        return float(tensor[0])

    assert each(total) == [6.0] * 3
    for quorum in ("second", "third"):
        each(lambda pg, rank, quorum=quorum: pg.configure(f"{host}/{quorum}", "replica", (rank + 1) % 3, 3))
        assert [pg.rank() for pg in groups] == [1, 2, 0]
        assert each(total) == [6.0] * 3


def test_three_of_which_one_leaves(host: str, three: tuple[list[Pg], Callable[..., list[Any]]]) -> None:
    """The others get an error, say so by ``errored()``, and go on in the next quorum."""
    _, each = three

    def go_on(pg: Pg, rank: int) -> str:
        pg.set_timeout(timedelta(seconds=10))
        if rank == 2:
            pg.shutdown()
            return "left"
        with pytest.raises(PeerLost, match="rank 2"):
            pg.allreduce([torch.ones(1)], dist.AllreduceOptions()).wait()
        assert isinstance(pg.errored(), PeerLost)
        pg.configure(f"{host}/smaller", rank, 2)
        assert pg.errored() is None
        tensor = torch.ones(1)
        pg.allreduce([tensor], dist.AllreduceOptions()).wait()
        return f"{pg.size()} members: {tensor.item():g}"

    assert each(go_on) == ["2 members: 2", "2 members: 2", "left"]


def test_a_broken_quorum_after_abort(three: tuple[list[Pg], Callable[..., list[Any]]]) -> None:
    groups, _ = three
    work = groups[0].allreduce([torch.ones(1)], dist.AllreduceOptions())
    groups[0].abort()
    with pytest.raises(MultiWorldError, match="abort"):
        work.wait()
    assert groups[0].errored() is not None


def test_a_member_that_does_not_come(host: str) -> None:
    pg = TorchftProcessGroup(timeout=timedelta(seconds=0.2))
    with pytest.raises(RendezvousError, match=r"0\.2 s"):
        pg.configure(f"{host}/two", 0, 2)
    with pytest.raises(InvalidArgument, match="host:port/prefix"):
        pg.configure("nowhere", 0, 2)


@pytest.mark.nightly("test_matrix.py::test_rows, on the group that this one is made of")
def test_functional_collectives_and_its_name(host: str) -> None:
    from torch.distributed import _functional_collectives as functions

    pg = TorchftProcessGroup().register("ft")
    pg.configure(f"{host}/functional", 0, 1)
    try:
        assert c10d._resolve_process_group(pg.group_name) is pg
        assert functions.all_reduce(torch.ones(2), "sum", pg).tolist() == [1.0, 1.0]
    finally:
        pg.unregister()
        pg.shutdown()
