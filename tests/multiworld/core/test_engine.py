"""The matching engine alone: deadlines by a clock of the test's own, and what a peer that errs can do."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from engines import OP_TIMEOUT, Network
from torch.distributed import ReduceOp

from multiworld import P2P, OpTimeout, PeerLost, TensorMismatch
from multiworld.matching.protocol import MAX_GROUPS
from multiworld.operations import collectives, objects, p2p
from tests.multiworld.engine.reference.agreement import MAX_EARLY
from tests.multiworld.engine.reference.frames import HEADER, Kind
from tests.multiworld.engine.reference.peer_messages import MAX_WAITING

LARGE = 1 << 20  # float32: more than travels with the fingerprints


@pytest.fixture
def net() -> Network:
    return Network(2)


def waits(net: Network, operation: Any, timeout: float | None = None) -> Any:
    """Let somebody wait for it."""
    operation.set_deadline(timeout)
    return operation


# deadlines


def test_an_operation_is_overdue_when_its_time_is_over_and_not_before(net: Network) -> None:
    receive = waits(net, net.recv(0, 1)[0])
    (member, _), (due,) = net.members, net.members[0].alarms
    assert due == net.clock.now + OP_TIMEOUT
    member.tick(due - 0.001)
    assert not receive.done
    assert member.engine.next_look == due
    member.tick(due)
    with pytest.raises(OpTimeout, match="rank 1 to send"):
        receive.result()


def test_an_alarm_is_asked_for_only_when_it_comes_before_the_last(net: Network) -> None:
    now, member = net.clock.now, net.members[0]
    for seconds in (5.0, 6.0, 2.0, 3.0):
        waits(net, net.recv(0, 1)[0], seconds)
    assert member.alarms == [now + 5.0, now + 2.0]


def test_a_deadline_goes_with_its_operation(net: Network) -> None:
    member, (receive, _) = net.members[0], net.recv(0, 1)
    waits(net, receive, 1.0)
    net.send(1, 1.0)
    net.move_until(lambda: receive.done)
    member.tick(net.clock.now + 1.0)
    assert member.engine.failure is None
    assert member.engine.next_look == math.inf
    waits(net, net.recv(0, 1)[0], 2.0)
    assert member.alarms[-1] == net.clock.now + 2.0, "nobody looks at the next deadline"


def test_what_nobody_waits_for_is_never_overdue(net: Network) -> None:
    net.recv(0, 1)
    net.members[0].tick(net.clock.now + 1e9)
    assert net.members[0].engine.failure is None


def test_the_first_deadline_counts_whoever_began_first(net: Network) -> None:
    late, soon = waits(net, net.recv(0, 1)[0], 3.0), waits(net, net.start(0, p2p.recv, torch.zeros(1), 1, 7), 1.0)
    net.members[0].tick(net.clock.now + 1.0)
    assert isinstance(net.members[0].engine.failure, OpTimeout)
    assert net.members[0].engine.failure.timeout == 1.0
    assert late.done
    assert soon.done


def test_peers_are_awaited_since_somebody_waits(net: Network) -> None:
    engine = net.members[0].engine
    receive, _ = net.recv(0, 1)
    assert engine.awaited(net.clock.now) == set()
    waits(net, receive)
    assert engine.awaited(net.clock.now) == {1}
    assert engine.awaited(net.clock.now - 0.1) == set(), "not for so long"
    net.withdraw(receive)
    assert engine.awaited(net.clock.now) == set()


def test_the_peers_of_a_batch_are_awaited_since_somebody_waits_for_the_batch() -> None:
    net = Network(3)
    batch = net.start(0, p2p.batch_p2p, [P2P("recv", torch.zeros(1), peer) for peer in (1, 2)])
    engine = net.members[0].engine
    assert engine.awaited(net.clock.now) == set()
    waits(net, batch)
    assert engine.awaited(net.clock.now) == {1, 2}


@pytest.mark.parametrize("left", [0.0, 5.0])
def test_a_timeout_names_whom_it_waits_for(left: float) -> None:
    net = Network(3)
    reduction = net.start(0, collectives.all_reduce, torch.ones(1), ReduceOp.SUM)
    waits(net, reduction, left or None)
    net.start(1, collectives.all_reduce, torch.ones(1), ReduceOp.SUM)
    net.settle()
    net.members[0].tick(net.clock.now + OP_TIMEOUT)
    with pytest.raises(OpTimeout, match=r"ranks \[2\] to call it"):
        reduction.result()


def test_nothing_begins_after_the_end(net: Network) -> None:
    member = net.members[0]
    member.end(OpTimeout("w", "over", timeout=1.0))
    receive, _ = net.recv(0, 1)
    with pytest.raises(OpTimeout):
        receive.result()
    receive.set_deadline(1.0)
    assert member.alarms == []
    assert not member.engine.operations


# collectives


def test_a_small_collective_is_one_exchange_and_a_large_one_goes_in_parts(net: Network) -> None:
    small = [torch.full((4,), rank + 1.0) for rank in range(2)]
    done = [net.start(rank, collectives.all_reduce, small[rank], ReduceOp.SUM) for rank in range(2)]
    net.move_until(lambda: all(one.done for one in done))
    assert [one.tolist() for one in small] == [[3.0] * 4] * 2
    large = [net.start(rank, collectives.all_reduce, torch.zeros(LARGE), ReduceOp.SUM) for rank in range(2)]
    net.move_until(lambda: all(one.done for one in large))
    assert all(one.succeeded for one in large)
    assert not any(member.launched for member in net.members)


def test_a_member_may_be_many_collectives_ahead(net: Network) -> None:
    ahead = [torch.full((1,), 1.0 + turn) for turn in range(100)]
    first = [net.start(0, collectives.all_reduce, one, ReduceOp.SUM) for one in ahead]
    net.settle()
    assert not any(one.done for one in first)
    for _ in first:
        net.start(1, collectives.all_reduce, torch.zeros(1), ReduceOp.SUM)
    net.settle()
    assert all(one.done for one in first)
    assert [one.item() for one in ahead] == [1.0 + turn for turn in range(100)]


def test_all_members_hear_the_same_of_a_mismatch() -> None:
    net = Network(3)
    calls = [net.start(rank, collectives.all_reduce, torch.ones(1 + rank // 2), ReduceOp.SUM) for rank in range(3)]
    net.settle()
    for call in calls:
        with pytest.raises(TensorMismatch, match="calls all_reduce of 4 bytes of float32 with SUM"):
            call.result()
    assert not net.failures()


def test_a_group_of_another_digest_is_a_mismatch_although_the_number_is_the_same(net: Network) -> None:
    net.members[1].group.digest = 7
    calls = [net.start(rank, collectives.all_reduce, torch.ones(1), ReduceOp.SUM) for rank in range(2)]
    net.settle()
    for call in calls:
        with pytest.raises(TensorMismatch, match="groups of different ranks or labels"):
            call.result()
    assert not net.failures()


def test_objects_travel_with_the_fingerprints(net: Network) -> None:
    calls = [net.start(rank, objects.all_gather_object, {"rank": rank}, ()) for rank in range(2)]
    net.settle()
    assert [call.result() for call in calls] == [[{"rank": 0}, {"rank": 1}]] * 2


@pytest.mark.parametrize(
    ("gives_up", "heard", "fails"),
    [(False, True, False), (True, True, True), (False, False, True), (True, False, True)],
)
def test_a_collective_goes_on_without_a_member_that_said_its_part(gives_up: bool, heard: bool, fails: bool) -> None:
    net = Network(3)
    mine = net.start(0, collectives.all_reduce, torch.ones(1), ReduceOp.SUM)
    if heard:
        net.start(1, collectives.all_reduce, torch.ones(1), ReduceOp.SUM)
        net.move(0, 1)
    net.members[1].wires[0].put(Kind.BYE, flags=int(gives_up))
    net.move(0, 1)
    assert isinstance(net.members[0].engine.failure, PeerLost) is fails
    assert mine.done is fails


# peers that err

WRONG: dict[str, Callable[[Any], None]] = {
    "a payload that was not asked for": lambda lane: lane.put(Kind.DATA, seq=9, payload=(b"1234",), nbytes=4),
    "a frame of unknown kind": lambda lane: lane.put(99),
    "a fingerprint that is too short": lambda lane: lane.put(Kind.FINGERPRINT, flags=3, payload=(b"123",), nbytes=3),
    "a collective far ahead": lambda lane: lane.put(
        Kind.FINGERPRINT, flags=24, seq=MAX_EARLY, payload=(bytes(24),), nbytes=24
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_peer_that_sends_what_cannot_be_right_is_lost(net: Network, what: str) -> None:
    receive, _ = net.recv(0, 1)
    WRONG[what](net.members[1].wires[0])
    net.move(0, 1)
    failure = net.members[0].engine.failure
    assert isinstance(failure, PeerLost)
    assert failure.how == "protocol"
    with pytest.raises(PeerLost, match="sent what cannot be right"):
        receive.result()


def test_a_peer_cannot_post_receives_without_end(net: Network) -> None:
    flood(net, [HEADER.pack(Kind.POST, 0, 0, seq, 0, 4) for seq in range(MAX_WAITING + 1)])
    assert f"more than {MAX_WAITING} receives" in str(net.members[0].engine.failure)


def test_a_peer_cannot_make_up_groups_without_end(net: Network) -> None:
    flood(net, [HEADER.pack(Kind.FINGERPRINT, 0, 24, 0, gid, 24) + bytes(24) for gid in range(MAX_GROUPS + 1)])
    assert f"one group more than {MAX_GROUPS}" in str(net.members[0].engine.failure)


def flood(net: Network, frames: list[bytes]) -> None:
    """Write them at rank 1; the last one is more than rank 0 bears."""
    for begin in range(0, len(frames), 1000):
        assert net.members[0].engine.failure is None
        net.members[1].wires[0].write(b"".join(frames[begin : begin + 1000]))
        net.move(0, 1)
