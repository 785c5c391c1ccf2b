"""Messages that stay on the device, between real processes on nccl (simulated)."""

from __future__ import annotations

import pytest
import torch

from gpuless.control import Remote
from tests.multiworld.device import message_acts, stream_acts
from tests.multiworld.device.ranks import backends, has_bindings
from tests.multiworld.device.simulated import Cluster

assert has_bindings  # named in the marks of ``backends``
pytestmark = pytest.mark.parametrize("backend", backends())


def test_every_dtype_travels_both_ways_at_once(members: Cluster) -> None:
    dtypes = [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.int16, torch.complex64]
    found = members.all(2, message_acts.exchange, dtypes)
    assert found == [[[peer, peer + 1, peer + 2]] * len(dtypes) for peer in (1, 0)]


def test_lengths_from_nothing_to_megabytes(members: Cluster) -> None:
    counts = [1, 0, 3, 1 << 12, (1 << 16) + 1, 1 << 20]
    assert members.all(2, message_acts.sizes, counts) == [[], [True] * len(counts)]


def test_tensors_with_their_shapes(members: Cluster) -> None:
    _, found = members.all(2, message_acts.described)
    assert found == [[True] * 3, ["cuda:0", "cuda:0", "cpu"], (0, 5), "cuda:0"]


def test_from_any_source(members: Cluster) -> None:
    assert members.all(3, message_acts.any_source)[0] == [(1, 1.0), (2, 2.0)]


def test_batches(members: Cluster) -> None:
    for rank, (result, first) in enumerate(members.all(3, message_acts.batches)):
        others = [one for one in range(3) if one != rank]
        assert result == [None, None, *others]
        assert first == [10.0 * one + rank for one in others]


def test_in_a_group(members: Cluster) -> None:
    assert members.all(3, message_acts.in_group) == [(0, [5.0, 6.0, 7.0, 8.0]), None, None]


def test_a_cpu_tensor_does_not_fit_one_on_the_device(members: Cluster) -> None:
    for texts in members.all(2, message_acts.crossing):
        for text in texts:
            assert "16 bytes of float32 on the device" in text
            assert "one side passes a tensor on the CPU" in text
            assert "pass both on the device, or both on the CPU" in text


def test_what_cannot_be_right_is_refused_before_anything_is_sent(members: Cluster) -> None:
    for rank, texts in enumerate(members.all(2, message_acts.refused)):
        assert [f"'w', generation 1, rank {rank}" in text for text in texts] == [True] * 5, texts
        assert all(text.startswith("InvalidArgument") for text in texts)
        assert all("the tensor is on cuda:1, the world on cuda:0" in text for text in texts[:2])
        assert "different devices: cpu, cuda:0" in texts[2]
        assert all("being captured into a graph" in text for text in texts[3:])


def test_nothing_is_launched_before_both_have_called(members: Cluster) -> None:
    sender, receiver = (members.start(message_acts.unmatched, rank) for rank in range(2))
    with Remote(members.control, sender.recv()) as block:
        assert block.counters().launched == 0, "a kernel waits on the device for a peer that has not called"
        receiver.send("go")
        assert receiver.result() == (1 << 16) - 1
        assert sender.result() is None
        assert block.counters().launched > 0


def test_a_cancelled_receive_loses_no_message(members: Cluster) -> None:
    assert members.all(2, message_acts.cancelled)[1] == [float(value) for value in range(20)]


@pytest.mark.parametrize("stream", [False, True])
def test_a_message_without_an_operation_gets_one_behind_what_python_begins(
    members: Cluster, backend: str, stream: bool
) -> None:
    _, (right, taken_in, held, left) = members.all(2, message_acts.overtaking, stream)
    assert right
    assert taken_in == (backend == "nccl"), "torch-nccl launches all in Python"
    assert (held, left) == (0, 0)


def test_an_interrupted_receive_loses_no_message(members: Cluster, backend: str) -> None:
    if backend == "torch-nccl":
        pytest.skip("Python begins its messages, and an interrupt there ends the world")
    kept = members.all(2, message_acts.interrupted)[1]
    assert kept, "no interrupt came between the message and its receiver"


@pytest.mark.parametrize("stream", [False, True])
def test_the_order_of_the_callers_stream_is_kept(members: Cluster, stream: bool) -> None:
    found = members.all(2, message_acts.ordered, stream)[1]
    assert found == [[float(value), float(value)] for value in range(8)]


def test_synchronous_twins(members: Cluster) -> None:
    last = 2.0 * ((1 << 16) - 1) + 1
    assert members.all(2, message_acts.in_threads) == [None, [last] * 3]


def test_a_world_that_comes_back_leaves_no_thread(members: Cluster) -> None:
    assert members.all(2, stream_acts.comes_back, 3) == [[[1.0] * 3, []]] * 2


def test_a_gloo_world_takes_cuda_tensors_through_the_host(members: Cluster) -> None:
    workers = [members.start(message_acts.through_the_host, rank) for rank in range(2)]
    for worker in workers:
        with Remote(members.control, worker.recv()) as block:
            assert block.counters().launched == 0
        worker.send("go")
    last = 2.0 * ((1 << 18) - 1) + 1
    assert [worker.result() for worker in workers] == [("cuda:0", [1.0, 3.0, 5.0, 7.0], last)] * 2
