"""Callers that stop waiting for what stays on the device, and receives from any source: see test_device_engine.py."""

from __future__ import annotations

import pytest
import torch
from device_engines import DeviceNetwork, names

from multiworld import P2P
from multiworld.operations import p2p


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
    assert operation.held_by_backend() == [operation], "its caller goes on while the device uses the memory"
    net.run()
    assert operation.held_by_backend() == []
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
    net.detach(receive)
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
        net.detach(receive)
    net.settle()
    assert [(receive.result(), got.item()) for receive, got in late] == [(0, 1.0), (0, 2.0), (0, 3.0)]


def test_a_cancelled_tensor_with_its_shape_is_kept(net: DeviceNetwork) -> None:
    receive = net.start(1, p2p.recv_tensor, 0, 0, None)
    net.start(0, p2p.send_tensor, torch.arange(4), 1, 0)
    net.settle()
    net.withdraw(receive)
    assert receive.held_by_backend() == [], "nothing of its caller's is used"
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
    assert receive.held_by_backend() == []
    net.run()
    assert net.start(1, p2p.recv_tensor, 0, 0, None).result().tolist() == [0, 1, 2, 3]


def test_a_cancelled_batch_waits_for_its_matched_parts_only(net: DeviceNetwork) -> None:
    tensors = [torch.zeros(1), torch.zeros(1)]
    batch = net.start(1, p2p.batch_p2p, [P2P("recv", tensor, 0, tag) for tag, tensor in enumerate(tensors)])
    net.send_on(0, 5.0, 1)
    net.settle()
    batch.withdraw()
    assert batch.held_by_backend() == [batch.operations[0]]
    net.run()
    assert batch.held_by_backend() == []
    net.detach(batch)
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
    assert send.held_by_backend() == []
    net.detach(send)
    sent.fill_(-1.0)
    net.run()
    assert (receive.result(), got.item()) == (1, 7.0)
