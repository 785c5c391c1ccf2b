"""Collectives that stay on the device: agreed before they are launched. See test_device_engine.py."""

from __future__ import annotations

import pytest
import torch
from device_engines import DeviceNetwork
from torch.distributed import ReduceOp

from multiworld import InvalidArgument, TensorMismatch
from multiworld.operations import collectives, exchanges


def test_a_collective_is_agreed_before_it_is_launched_however_small(net: DeviceNetwork) -> None:
    tensors = [torch.ones(2), torch.ones(2)]
    first = net.start(0, collectives.all_reduce, tensors[0], ReduceOp.SUM)
    net.settle()
    assert net.members[0].launched == []
    second = net.start(1, collectives.all_reduce, tensors[1], ReduceOp.SUM)
    net.settle()
    assert [member.launched for member in net.members] == [[first], [second]]
    net.run_collective()
    first.result()
    second.result()
    assert [tensor.tolist() for tensor in tensors] == [[2.0, 2.0]] * 2
    assert all(len(member.driver.joined) == 1 for member in net.members)


def test_a_collective_on_both_kinds_is_a_mismatch(net: DeviceNetwork) -> None:
    on_cpu = torch.ones(2)
    net.members[0].device.on_cpu.append(on_cpu)
    calls = [
        net.start(0, collectives.all_reduce, on_cpu, ReduceOp.SUM),
        net.start(1, collectives.all_reduce, torch.ones(2), ReduceOp.SUM),
    ]
    net.settle()
    for call in calls:
        with pytest.raises(TensorMismatch, match="float32 on the device"):
            call.result()


@pytest.mark.parametrize("count", [4, 1 << 18])
def test_cpu_tensors_of_a_collective_travel_with_the_fingerprints(count: int) -> None:
    net = DeviceNetwork(2, capacity=1 << 24)
    tensors = [torch.ones(count), torch.ones(count)]
    rows = [[torch.full((3,), rank), torch.full((5,), rank)] for rank in range(2)]
    outs = [[torch.zeros(3, dtype=torch.long) for _ in range(2)], [torch.zeros(5, dtype=torch.long) for _ in range(2)]]
    for rank, member in enumerate(net.members):
        member.device.on_cpu += [tensors[rank], *rows[rank], *outs[rank]]
    calls = [net.start(rank, collectives.all_reduce, tensors[rank], ReduceOp.SUM) for rank in range(2)]
    calls += [net.start(rank, exchanges.all_to_all, outs[rank], rows[rank]) for rank in range(2)]
    net.move_until(lambda: all(call.done for call in calls))
    for call in calls:
        call.result()
    assert tensors[0][-1].item() == 2.0
    assert [[one[0].item() for one in out] for out in outs] == [[0, 1], [0, 1]]


def test_a_cancelled_collective_goes_on_from_copies(net: DeviceNetwork) -> None:
    left = torch.ones(2)
    first = net.start(0, collectives.all_reduce, left, ReduceOp.SUM)
    net.settle()
    first.withdraw()
    second = net.start(1, collectives.all_reduce, torch.ones(2), ReduceOp.SUM)
    net.settle()
    assert net.members[0].begun(0, 1) == [], "it began before the copy was made"
    first.detach()
    left.fill_(9.0)
    net.run_collective()
    second.result()
    assert left.tolist() == [9.0, 9.0]


def test_who_is_alone_launches_nothing() -> None:
    net = DeviceNetwork(1)
    tensor, out = torch.arange(4.0), torch.zeros(4)
    calls = [
        net.start(0, collectives.all_reduce, tensor, ReduceOp.AVG),
        net.start(0, collectives.all_gather, [out], tensor),
        net.start(0, exchanges.all_to_all_single, torch.zeros(4), tensor, None, None),
    ]
    for call in calls:
        call.result()
    assert net.members[0].launched == []
    assert out.tolist() == [0.0, 1.0, 2.0, 3.0]


def test_a_reduction_that_nccl_lacks_is_refused_before_anything_is_sent(net: DeviceNetwork) -> None:
    with pytest.raises(InvalidArgument, match="NCCL has no BAND"):
        net.start(0, collectives.all_reduce, torch.ones(2, dtype=torch.int32), ReduceOp.BAND)
    assert net.members[0].wires[1].sent == 0


def test_a_collective_of_both_kinds_in_one_call_is_refused(net: DeviceNetwork) -> None:
    meta = torch.empty(2, device="meta")
    with pytest.raises(InvalidArgument):
        net.start(0, collectives.all_gather, [meta, meta], torch.ones(2))
    assert net.members[0].wires[1].sent == 0
