"""Frames that belong together are one write, which wakes the peer once; what comes of them is as if they were not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from multiworld.errors import TensorMismatch
from multiworld.matching.protocol import HEADER_BYTES
from multiworld.operations import p2p
from multiworld.operations.p2p import P2P
from multiworld.transport.lane import TOGETHER_BYTES
from tests.multiworld.engines import Network


def receives(count: int, peer: int = 1) -> list[P2P]:
    return [P2P("recv", torch.zeros(1), peer, tag) for tag in range(count)]


def writes(net: Network, rank: int, peer: int) -> list[int]:
    return net.members[rank].socks[peer].writes


def test_the_posts_of_a_batch_are_one_write_per_peer() -> None:
    net = Network(3)
    batch = net.start(0, p2p.batch_p2p, [*receives(3), *receives(2, peer=2)])
    assert writes(net, 0, 1) == [3 * HEADER_BYTES]
    assert writes(net, 0, 2) == [2 * HEADER_BYTES]
    for rank, count in ((1, 3), (2, 2)):
        for tag in range(count):
            net.start(rank, p2p.send, torch.tensor([float(tag)]), 0, tag)
    net.settle()
    assert batch.done
    assert [entry.item() for entry in batch.loans()] == [0.0, 1.0, 2.0, 0.0, 1.0]


def test_a_long_batch_does_not_keep_the_peer_waiting() -> None:
    net = Network(2)
    net.start(0, p2p.batch_p2p, receives(20))
    assert writes(net, 0, 1) == [TOGETHER_BYTES, TOGETHER_BYTES, 4 * HEADER_BYTES]


@pytest.mark.parametrize("first", [1, 2])
def test_an_interrupt_while_one_peer_is_let_go_keeps_nothing_from_the_other(first: int) -> None:
    """The order in which the two are let go is chance, so Ctrl-C comes at each of them."""
    net = Network(3)
    socks = net.members[0].socks

    def interrupted(data: Any) -> int:
        raise KeyboardInterrupt

    socks[first].send = interrupted  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        net.start(0, p2p.batch_p2p, [*receives(2), *receives(2, peer=2)])
    other = 3 - first
    assert writes(net, 0, other) == [2 * HEADER_BYTES]
    net.start(0, p2p.recv, torch.zeros(1), other, 7)
    assert writes(net, 0, other) == [2 * HEADER_BYTES, HEADER_BYTES], "it is held still"


def test_what_is_held_goes_out_before_a_payload() -> None:
    net = Network(2)
    back = net.start(1, p2p.recv, torch.zeros(1), 0, 7)
    net.move(to=0, of=1)
    batch = net.start(0, p2p.batch_p2p, [*receives(2), P2P("send", torch.ones(1), 1, 7)])
    assert writes(net, 0, 1) == [2 * HEADER_BYTES, HEADER_BYTES + 4]
    net.settle()
    assert back.done
    assert not batch.done


def test_answers_to_what_came_together_go_out_together() -> None:
    net = Network(2)
    sends = [net.start(1, p2p.send, torch.ones(2), 0, tag) for tag in range(3)]
    batch = net.start(0, p2p.batch_p2p, receives(3))
    net.move(to=1, of=0)
    assert writes(net, 1, 0) == [3 * HEADER_BYTES], "three refusals of another length"
    net.settle()
    for operation in (batch, *sends):
        with pytest.raises(TensorMismatch):
            operation.result()


def test_a_frame_alone_is_not_held() -> None:
    net = Network(2)
    net.start(0, p2p.recv, torch.zeros(1), 1, 0)
    assert writes(net, 0, 1) == [HEADER_BYTES]
    net.start(1, p2p.send, torch.ones(2), 0, 0)
    net.move(to=1, of=0)
    assert writes(net, 1, 0) == [HEADER_BYTES]


def test_a_peer_that_takes_little_gets_all_in_order() -> None:
    net = Network(2, capacity=HEADER_BYTES + 5)
    batch = net.start(0, p2p.batch_p2p, receives(12))
    for tag in range(12):
        net.start(1, p2p.send, torch.tensor([float(tag)]), 0, tag)
    net.settle()
    assert batch.done
    assert [entry.item() for entry in batch.loans()] == [float(tag) for tag in range(12)]
