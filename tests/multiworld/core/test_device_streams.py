"""Transfers that are enqueued ahead, and what is under way when a peer leaves or lies: see test_device_engine.py."""

from __future__ import annotations

import pytest
import torch
from device_engines import DeviceNetwork, names
from engines import Network
from torch.distributed import ReduceOp

from multiworld import PeerLost
from multiworld.matching.protocol import Mode
from multiworld.operations import collectives, p2p
from tests.multiworld.engine.reference.frames import Kind


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
    assert receive.held_by_backend() == [receive]
    net.run()
    net.detach(receive)
    left.fill_(-1.0)
    again, got = net.recv_on(1, 0)
    assert (again.result(), got.item()) == (0, 5.0)


def test_on_the_cpu_nothing_returns_before_it_is_done() -> None:
    net = Network(2)
    tensors = [torch.zeros(1 << 20), torch.zeros(1 << 20)]  # more than travels with the fingerprints
    calls = [net.start(rank, collectives.all_reduce, tensors[rank], ReduceOp.AVG, True) for rank in range(2)]
    assert not any(call.done for call in calls)
    net.move_until(lambda: all(call.done for call in calls))
    assert all(call.succeeded for call in calls)


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
    net.members[0].wires[1].put(Kind.BYE)
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
    net.members[0].wires[1].put(Kind.BYE, flags=1)
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
    net.members[0].wires[1].put(Kind.DATA, 0, mode, 1, 0, (said,) if said else (), len(said))
    net.settle()
    assert isinstance(net.members[1].engine.failure, PeerLost)
    assert names(net) == [[], []]
