"""``stream=True``: what is enqueued is the device's, and what fails later is heard of; on nccl (simulated)."""

from __future__ import annotations

import pytest

from gpuless.control import Action, Remote
from tests.multiworld.device import stream_acts
from tests.multiworld.device.ranks import backends, has_bindings
from tests.multiworld.device.simulated import Cluster

assert has_bindings  # named in the marks of ``backends``
pytestmark = pytest.mark.parametrize("backend", backends())


def test_transfers_are_enqueued_ahead_of_the_device(members: Cluster) -> None:
    workers = [members.start(stream_acts.pipelined, rank, 30) for rank in range(2)]
    pids = [worker.recv() for worker in workers]
    with Remote(members.control, pids[0]) as block:
        block.inject("ncclSend", Action.HOLD)
        for worker in workers:
            worker.send("go")
        assert [worker.recv() for worker in workers] == ["enqueued"] * 2, "it waits for the device"
        block.lift("ncclSend")
    assert [worker.result() for worker in workers] == [[float(value) for value in range(30)]] * 2


@pytest.mark.parametrize("in_a_thread", [False, True])
def test_a_transfer_that_is_matched_late_is_enqueued_all_the_same(members: Cluster, in_a_thread: bool) -> None:
    workers = [members.start(stream_acts.late, rank, in_a_thread) for rank in range(2)]
    with Remote(members.control, workers[0].recv()) as block:
        block.inject("ncclSend", Action.HOLD)
        workers[0].send("go")
        assert workers[0].recv() == "enqueued", "it waits for the device"
        block.lift("ncclSend")
    assert [worker.result() for worker in workers] == [0, 7.0]


def test_nothing_is_held_of_what_is_over(members: Cluster, backend: str) -> None:
    for name, (alone, left, counts) in zip(("send", "recv"), members.all(2, stream_acts.forgotten, 50), strict=True):
        assert (alone, left, counts[name]) == (True, 0, 51)


def test_what_was_enqueued_arrives_although_its_sender_leaves(members: Cluster) -> None:
    assert members.all(2, stream_acts.leaves, 20) == [None, [float(value) for value in range(20)]]


@pytest.mark.parametrize("then", ["synchronize", "next", "event"])
def test_a_transfer_that_fails_later_is_heard_of(members: Cluster, then: str) -> None:
    workers = [members.start(stream_acts.fails_later, rank, then) for rank in range(2)]
    pids = [worker.recv() for worker in workers]
    with Remote(members.control, pids[1]) as block:
        block.inject("ncclRecv", Action.HOLD)  # it is enqueued and does not move
        for worker in workers:
            worker.send("go")
        for worker in workers:
            assert worker.recv() == "enqueued"
        workers[1].kill()
    assert workers[0].result() == ("PeerLost", "w", True)
