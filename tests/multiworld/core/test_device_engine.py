"""Operations on the device, by the matching alone: matched before they are launched, in one order on both sides.

The device is one that notes down what it is asked for and refuses to be asked under the lock.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from device_engines import DeviceNetwork, names
from torch.distributed import ReduceOp

from multiworld import P2P, InvalidArgument, PeerLost, TensorMismatch
from multiworld.operations import collectives, p2p


@pytest.mark.parametrize("first", ["send", "recv"])
def test_nothing_is_launched_before_both_sides_have_called(net: DeviceNetwork, first: str) -> None:
    starts = {"send": lambda: net.send_on(0, 5.0, 1), "recv": lambda: net.recv_on(1, 0)}
    starts.pop(first)()
    net.settle()
    assert names(net) == [[], []]
    starts.popitem()[1]()
    net.settle()
    assert names(net) == [["send"], ["recv"]]


def test_a_message_is_over_when_the_device_has_done_it(net: DeviceNetwork) -> None:
    receive, got = net.recv_on(1, 0)
    send = net.send_on(0, 5.0, 1)
    net.settle()
    assert not receive.done
    assert not send.done
    assert net.run() == 1
    assert (receive.result(), send.result(), got.item()) == (0, None, 5.0)


def test_a_receive_posted_ahead_costs_one_frame_without_payload(net: DeviceNetwork) -> None:
    net.start(1, p2p.recv, torch.zeros(1 << 16), 0, 0)
    net.settle()
    before = net.members[0].wires[1].sent
    net.start(0, p2p.send, torch.ones(1 << 16), 1, 0)
    assert net.members[0].wires[1].sent - before == 24


def test_the_driver_waits_for_the_caller_and_the_caller_for_the_driver(net: DeviceNetwork) -> None:
    receive, _ = net.recv_on(1, 0)
    send = net.send_on(0, 5.0, 1)
    net.settle()
    works = [net.members[rank].begun(0, 1)[0] for rank in (0, 1)]
    assert all(work.after is not None for work in works)
    net.run()
    send.result()
    receive.result()
    assert [member.driver.joined for member in net.members] == [[work] for work in works]


def test_transfers_of_a_pair_begin_in_the_same_order_on_both_sides() -> None:
    draw = random.Random(7)
    for _ in range(30):
        net = DeviceNetwork(2)
        posted: list[tuple[int, Any, torch.Tensor]] = []
        sent = 0
        for _ in range(40):
            tag = draw.randrange(3)
            if draw.random() < 0.5:
                net.start(0, p2p.send, torch.tensor([float(sent)]), 1, tag)
                sent += 1
            else:
                got = torch.full((1,), -1.0)
                posted.append((tag, net.start(1, p2p.recv, got, 0, tag), got))
            net.move(*draw.choice(net.pairs()))
        net.settle()
        began = [work.tensor.view(torch.float32).item() for work in net.members[0].begun(0, 1)]
        ends = net.members[1].begun(0, 1)
        assert len(began) == len(ends) == sum(receive.launch is not None for _, receive, _ in posted)
        net.run()
        assert [work.tensor.view(torch.float32).item() for work in ends] == began
        for tag in range(3):
            came = [got.item() for of, receive, got in posted if of == tag and receive.done]
            assert came == sorted(came)


def test_the_two_directions_have_channels_of_their_own(net: DeviceNetwork) -> None:
    for rank in (0, 1):
        other = 1 - rank
        net.send_on(rank, float(rank), other)
    got = [net.recv_on(rank, 1 - rank) for rank in (0, 1)]
    net.settle()
    assert names(net, 0, 1) == [["send"], ["recv"]]
    assert names(net, 1, 0) == [["send"], ["recv"]]
    net.run()
    assert [tensor.item() for _, tensor in got] == [1.0, 0.0]


def test_what_has_no_bytes_is_matched_and_not_launched(net: DeviceNetwork) -> None:
    receive = net.start(1, p2p.recv, torch.zeros(0), 0, 0)
    described = net.start(1, p2p.recv_tensor, 0, 1, None)
    sends = [net.start(0, p2p.send, torch.zeros(0), 1, 0), net.start(0, p2p.send_tensor, torch.zeros(3, 0), 1, 1)]
    net.settle()
    assert names(net) == [[], []]
    assert all(one.done for one in (receive, *sends))
    assert described.result().shape == (3, 0)


def test_a_batch_whose_parts_are_matched_as_it_starts_begins_in_its_order(net: DeviceNetwork) -> None:
    """The first part has been given its number, and the second is matched already."""
    got = [torch.zeros(1), torch.zeros(1)]
    back = net.start(0, p2p.recv, got[0], 1, 1)
    net.settle()
    batch = net.start(1, p2p.batch_p2p, [P2P("recv", got[1], 0, 0), P2P("send", torch.full((1,), 7.0), 0, 1)])
    net.send_on(0, 5.0, 1)
    net.settle()
    net.run()
    assert batch.done
    assert back.done
    assert [one.item() for one in got] == [7.0, 5.0]


# what does not fit


def test_a_tensor_on_the_cpu_does_not_fit_one_on_the_device(net: DeviceNetwork) -> None:
    sent = torch.ones(4)
    net.members[0].device.on_cpu.append(sent)
    receive = net.start(1, p2p.recv, torch.zeros(4), 0, 0)
    send = net.start(0, p2p.send, sent, 1, 0)
    net.settle()
    for operation in (send, receive):
        with pytest.raises(
            TensorMismatch, match=r"float32 on the device(?s:.)*on the CPU, the other one on the device"
        ):
            operation.result()
    assert names(net) == [[], []]


def test_a_mismatch_launches_nothing_and_the_world_goes_on(net: DeviceNetwork) -> None:
    receive = net.start(1, p2p.recv, torch.zeros(5), 0, 0)
    send = net.start(0, p2p.send, torch.ones(4), 1, 0)
    net.settle()
    for operation in (send, receive):
        with pytest.raises(TensorMismatch):
            operation.result()
    receive, got = net.recv_on(1, 0)
    net.send_on(0, 3.0, 1)
    net.settle()
    assert net.run() == 1
    assert (receive.result(), got.item()) == (0, 3.0)


def test_cpu_tensors_travel_on_the_lanes(net: DeviceNetwork) -> None:
    sent, got = torch.arange(1 << 12), torch.zeros(1 << 12, dtype=torch.long)
    net.members[0].device.on_cpu.append(sent)
    net.members[1].device.on_cpu.append(got)
    receive = net.start(1, p2p.recv, got, 0, 0)
    net.start(0, p2p.send, sent, 1, 0)
    net.move_until(lambda: receive.done)
    assert torch.equal(sent, got)
    assert names(net) == [[], []]


def test_a_captured_stream_is_refused_before_anything_is_sent(net: DeviceNetwork) -> None:
    net.members[0].device.captures = True
    calls = [
        lambda: net.send_on(0, 1.0, 1),
        lambda: net.recv_on(0, 1),
        lambda: net.start(0, p2p.recv_tensor, 1, 0, None),
        lambda: net.start(0, p2p.batch_p2p, [P2P("send", torch.ones(1), 1)]),
        lambda: net.start(0, collectives.all_reduce, torch.ones(1), ReduceOp.SUM),
    ]
    for call in calls:
        with pytest.raises(InvalidArgument, match=r"captured into a graph(?s:.)*outside of torch\.cuda\.graph"):
            call()
    assert net.members[0].wires[1].sent == 0


# shapes that the sender says


def test_a_tensor_with_its_shape_finds_room_outside_of_the_lock(net: DeviceNetwork) -> None:
    receive = net.start(1, p2p.recv_tensor, 0, 0, None)
    sent = torch.arange(6, dtype=torch.int16).reshape(2, 3)
    net.start(0, p2p.send_tensor, sent, 1, 0)
    net.settle()
    assert names(net) == [["send"], []], "it begins when its memory is there"
    net.run_threads()
    assert names(net) == [["send"], ["recv"]]
    net.run()
    assert torch.equal(receive.result(), sent)
    assert net.members[1].device.adopted == 1, "the memory is not known to the caller's stream"


def test_what_is_behind_a_transfer_without_room_waits(net: DeviceNetwork) -> None:
    first = net.start(1, p2p.recv_tensor, 0, 0, None)
    second, got = net.recv_on(1, 0)
    net.start(0, p2p.send_tensor, torch.ones(2), 1, 0)
    net.send_on(0, 7.0, 1)
    net.settle()
    assert names(net) == [["send", "send"], []]
    net.run_threads()
    assert net.run() == 2
    assert (first.result().tolist(), second.result(), got.item()) == ([1.0, 1.0], 0, 7.0)


def test_a_cpu_tensor_with_its_shape_is_received_as_well(net: DeviceNetwork) -> None:
    sent = torch.arange(3.0)
    net.members[0].device.on_cpu.append(sent)
    receive = net.start(1, p2p.recv_tensor, 0, 0, None)
    net.start(0, p2p.send_tensor, sent, 1, 0)
    net.move_until(lambda: receive.done)
    assert receive.result().tolist() == [0.0, 1.0, 2.0]


def test_no_room_on_the_device_breaks_the_world(net: DeviceNetwork, monkeypatch: pytest.MonkeyPatch) -> None:
    receive = net.start(1, p2p.recv_tensor, 0, 0, None)
    net.start(0, p2p.send_tensor, torch.ones(2), 1, 0)
    net.settle()

    def full(*_: Any) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(net.members[1].device, "room", full)
    net.run_threads()
    with pytest.raises(PeerLost, match="no memory: CUDA out of memory"):
        receive.result()
