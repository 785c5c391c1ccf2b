"""What stays on the device, by the matching alone: matched before it is launched, in one order on both sides.

The device is one that notes down what it is asked for and refuses to be asked under the lock.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from device_engines import DeviceNetwork
from engines import Network
from torch.distributed import ReduceOp

from multiworld import P2P, InvalidArgument, PeerLost, TensorMismatch
from multiworld.net.frames import Kind, Mode
from multiworld.ops import collectives, exchanges, p2p


@pytest.fixture
def net() -> DeviceNetwork:
    return DeviceNetwork(2)


def names(net: DeviceNetwork, src: int = 0, dst: int = 1) -> list[list[str]]:
    """What has begun on both ends of a channel."""
    return [[work.what for work in net.members[rank].begun(src, dst)] for rank in (src, dst)]


# matched before launched


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
    before = net.members[0].lanes[1].sent
    net.start(0, p2p.send, torch.ones(1 << 16), 1, 0)
    assert net.members[0].lanes[1].sent - before == 24


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
        assert len(began) == len(ends) == sum(receive.arriving for _, receive, _ in posted)
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
    assert net.members[0].lanes[1].sent == 0


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


# cancelled


def test_an_unmatched_send_is_withdrawn(net: DeviceNetwork) -> None:
    net.withdraw(net.send_on(0, 1.0, 1))
    receive, got = net.recv_on(1, 0)
    net.settle()
    assert names(net) == [[], []]
    net.send_on(0, 2.0, 1)
    net.settle()
    net.run()
    assert (receive.result(), got.item()) == (0, 2.0)


def test_an_unmatched_receive_is_withdrawn(net: DeviceNetwork) -> None:
    withdrawn, lost = net.recv_on(1, 0)
    net.settle()
    net.withdraw(withdrawn)
    net.settle()
    receive, got = net.recv_on(1, 0)
    net.send_on(0, 2.0, 1)
    net.settle()
    assert net.run() == 1
    assert (receive.result(), got.item(), lost.item()) == (0, 2.0, 0.0)


@pytest.mark.parametrize("side", ["send", "recv"])
def test_what_is_matched_keeps_its_memory_until_its_end(net: DeviceNetwork, side: str) -> None:
    receive, got = net.recv_on(1, 0)
    send = net.send_on(0, 5.0, 1)
    net.settle()
    operation = send if side == "send" else receive
    operation.withdraw()
    assert operation.lent() == [operation], "its caller goes on while the device uses the memory"
    net.run()
    assert operation.lent() == []
    if side == "send":
        assert got.item() == 5.0


def test_a_message_on_its_way_to_who_left_is_kept_for_the_next(net: DeviceNetwork) -> None:
    receive, left = net.recv_on(1, 0)
    net.send_on(0, 5.0, 1)
    net.settle()
    receive.withdraw()
    again, got = net.recv_on(1, 0)
    net.run()
    assert not again.done, "the message still lies in the memory of who left"
    receive.part()
    left.fill_(-1.0)
    assert (again.result(), got.item()) == (0, 5.0)


def test_a_message_that_crosses_a_withdrawal_goes_to_memory_of_our_own(net: DeviceNetwork) -> None:
    receive, left = net.recv_on(1, 0)
    net.settle()
    net.send_on(0, 5.0, 1)
    net.withdraw(receive)  # its DATA is on its way
    net.settle()
    assert names(net) == [["send"], []]
    net.run_threads()
    assert net.members[1].device.made == [4]
    net.run()
    again, got = net.recv_on(1, 0)
    assert (again.result(), got.item(), left.item()) == (0, 5.0, 0.0)


def test_a_message_is_kept_when_its_end_and_the_withdrawal_cross(net: DeviceNetwork) -> None:
    receive, left = net.recv_on(1, 0)
    net.send_on(0, 5.0, 1)
    net.settle()
    net.run()
    assert receive.done
    net.withdraw(receive)
    left.fill_(-1.0)
    again, got = net.recv_on(1, 0)
    assert (again.result(), got.item()) == (0, 5.0)


def test_kept_messages_stay_in_order(net: DeviceNetwork) -> None:
    posted = [net.recv_on(1, 0) for _ in range(3)]
    net.settle()
    for value in (1.0, 2.0, 3.0):
        net.send_on(0, value, 1)
    net.move(1, 0)
    posted[0][0].withdraw()  # under way to its caller's memory, copied from there at last
    for receive, _ in posted[1:]:
        net.withdraw(receive)
    net.settle()
    net.run()
    late = [net.recv_on(1, 0) for _ in range(3)]
    for receive, _ in reversed(posted):
        receive.part()
    net.settle()
    assert [(receive.result(), got.item()) for receive, got in late] == [(0, 1.0), (0, 2.0), (0, 3.0)]


def test_a_cancelled_tensor_with_its_shape_is_kept(net: DeviceNetwork) -> None:
    receive = net.start(1, p2p.recv_tensor, 0, 0, None)
    net.start(0, p2p.send_tensor, torch.arange(4), 1, 0)
    net.settle()
    net.withdraw(receive)
    assert receive.lent() == [], "nothing of its caller's is used"
    net.run_threads()
    net.run()
    again = net.start(1, p2p.recv_tensor, 0, 0, None)
    assert again.result().tolist() == [0, 1, 2, 3]


def test_a_tensor_on_its_way_to_memory_of_our_own_is_not_waited_for(net: DeviceNetwork) -> None:
    receive = net.start(1, p2p.recv_tensor, 0, 0, None)
    net.start(0, p2p.send_tensor, torch.arange(4), 1, 0)
    net.settle()
    net.run_threads()
    assert names(net) == [["send"], ["recv"]]
    net.withdraw(receive)
    assert receive.lent() == []
    net.run()
    assert net.start(1, p2p.recv_tensor, 0, 0, None).result().tolist() == [0, 1, 2, 3]


def test_a_cancelled_batch_waits_for_its_matched_parts_only(net: DeviceNetwork) -> None:
    tensors = [torch.zeros(1), torch.zeros(1)]
    batch = net.start(1, p2p.batch_p2p, [P2P("recv", tensor, 0, tag) for tag, tensor in enumerate(tensors)])
    net.send_on(0, 5.0, 1)
    net.settle()
    batch.withdraw()
    assert batch.lent() == [batch.parts[0]]
    net.run()
    assert batch.lent() == []
    batch.part()
    again, got = net.recv_on(1, 0)
    assert (again.result(), got.item()) == (0, 5.0)


# from any source


def test_any_source_takes_the_first_and_launches_with_it_only() -> None:
    net = DeviceNetwork(3)
    receive, got = net.recv_on(0, None)
    net.settle()
    net.send_on(2, 2.0, 0)
    net.send_on(1, 1.0, 0)
    net.settle()
    begun = [pair for pair in net.pairs() if net.members[0].begun(*pair)]
    assert len(begun) == 1
    net.run()
    assert receive.result() == begun[0][0] == got.item()


def test_an_offered_send_whose_caller_left_goes_from_a_copy() -> None:
    net = DeviceNetwork(3)
    receive, got = net.recv_on(0, None)
    net.settle()
    sent = torch.tensor([7.0])
    send = net.start(1, p2p.send, sent, 0, 0)
    send.withdraw()  # offered: it has to be there if it is taken
    net.settle()
    assert names(net, 1, 0) == [[], ["recv"]], "the send began before the copy was made"
    assert send.lent() == []
    send.part()
    sent.fill_(-1.0)
    net.run()
    assert (receive.result(), got.item()) == (1, 7.0)


# stream=True


def test_a_streamed_transfer_returns_when_it_is_enqueued(net: DeviceNetwork) -> None:
    receive, got = net.recv_on(1, 0, stream=True)
    send = net.send_on(0, 5.0, 1, stream=True)
    net.settle()
    assert not receive.done
    assert not send.done
    net.enqueue()
    assert (receive.result(), send.result(), got.item()) == (0, None, 0.0)
    assert all(len(member.driver.joined) == 1 for member in net.members), "the stream does not wait for it"
    whole = net.members[0].engine.synchronize()
    assert not whole.done
    net.run()
    assert whole.done
    assert got.item() == 5.0
    assert net.members[0].engine.synchronize().done


def test_a_streamed_receive_that_is_cancelled_after_its_enqueuing_is_kept(net: DeviceNetwork) -> None:
    receive, left = net.recv_on(1, 0, stream=True)
    net.send_on(0, 5.0, 1)
    net.settle()
    net.enqueue()
    receive.withdraw()  # before its waiter was woken
    assert receive.lent() == [receive]
    net.run()
    receive.part()
    left.fill_(-1.0)
    again, got = net.recv_on(1, 0)
    assert (again.result(), got.item()) == (0, 5.0)


def test_on_the_cpu_nothing_returns_before_it_is_done() -> None:
    net = Network(2)
    tensors = [torch.zeros(1 << 20), torch.zeros(1 << 20)]  # more than travels with the fingerprints
    calls = [net.start(rank, collectives.all_reduce, tensors[rank], ReduceOp.AVG, True) for rank in range(2)]
    net.move_until(lambda: all(member.launched for member in net.members))
    for call in calls:
        call.launch.enqueued()
        assert not call.done, "what is left to do after the backend is not done yet"


def test_synchronize_names_what_it_waits_for(net: DeviceNetwork) -> None:
    net.recv_on(1, 0, stream=True)
    net.send_on(0, 5.0, 1, stream=True)
    net.settle()
    net.enqueue()
    whole = net.members[1].engine.synchronize()
    assert whole.waiting_for() == "1 enqueued operations to end on the device (recv)"
    assert whole.awaits() == (0,)


# who leaves


def test_what_is_under_way_ends_although_its_peer_leaves(net: DeviceNetwork) -> None:
    receive, got = net.recv_on(1, 0)
    net.send_on(0, 5.0, 1)
    net.settle()
    net.members[0].lanes[1].put(Kind.BYE)
    net.settle()
    assert net.members[1].engine.failure is None
    net.run()
    assert (receive.result(), got.item()) == (0, 5.0)


def test_what_is_under_way_cannot_end_when_its_peer_gives_it_up(net: DeviceNetwork) -> None:
    receive, _ = net.recv_on(1, 0, stream=True)
    net.send_on(0, 5.0, 1)
    net.settle()
    net.enqueue()
    assert receive.done
    assert net.members[0].engine.gives_up()
    net.members[0].lanes[1].put(Kind.BYE, flags=1)
    net.settle()
    assert isinstance(net.members[1].engine.failure, PeerLost)


@pytest.mark.parametrize(
    ("mode", "said"), [(Mode.DEVICE, b"xx"), (Mode.DEVICE_TENSOR, b""), (Mode.DEVICE_TENSOR, b"\xff" * 8 + b"\0")]
)
@pytest.mark.parametrize("wanted", ["recv", "recv_tensor"])
def test_a_peer_that_says_what_cannot_be_is_found_out(net: DeviceNetwork, mode: Mode, said: bytes, wanted: str) -> None:
    if wanted == "recv":
        net.recv_on(1, 0)
    else:
        net.start(1, p2p.recv_tensor, 0, 0, None)
    net.settle()
    net.members[0].lanes[1].put(Kind.DATA, 0, mode, 1, 0, (said,) if said else (), len(said))
    net.settle()
    assert isinstance(net.members[1].engine.failure, PeerLost)
    assert names(net) == [[], []]


# collectives


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
    first.part()
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
    assert net.members[0].lanes[1].sent == 0


def test_a_collective_of_both_kinds_in_one_call_is_refused(net: DeviceNetwork) -> None:
    meta = torch.empty(2, device="meta")
    with pytest.raises(InvalidArgument):
        net.start(0, collectives.all_gather, [meta, meta], torch.ones(2))
    assert net.members[0].lanes[1].sent == 0
