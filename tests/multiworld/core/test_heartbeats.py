"""Silence, suspicion, loss and our own stall, by a clock that a test moves: the hub's waits take no time."""

from __future__ import annotations

import contextlib
import math
import selectors
import socket
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from multiworld.config import Heartbeat
from multiworld.events import Callbacks, EventBus, OwnStall
from multiworld.liveness.monitor import Monitor
from multiworld.liveness.neighbour import PATIENCE, ProcessId
from multiworld.liveness.peer import TcpInfo
from multiworld.liveness.pulse import PING, PONG
from multiworld.matching.membership import Membership
from multiworld.transport.reactor import Reactor

BEAT = Heartbeat()
#: in seconds
LATE = 1e-6
EXACTLY = 1000 * LATE


class JumpingSelector(selectors.DefaultSelector):
    """A selector and its clock: where nothing is ready, time jumps to the end of the wait, and as real waits do ends
    a little later.

    Attributes:
        until: it does not jump further than this.
        stall: this process does not run for so many seconds after the next wait.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.until = 1000.0
        self.stall = 0.0

    def clock(self) -> float:
        return self.now

    def select(self, timeout: float | None = None) -> Any:
        ready = super().select(0)
        if not ready:
            self.now = min(self.until, self.now + (math.inf if timeout is None else timeout + LATE))
        self.now += self.stall
        self.stall = 0.0
        return ready


class StallingSocket:
    """A socket of ours: this thread loses the GIL for ``seconds`` before or after its next send."""

    def __init__(self, sock: socket.socket, time: JumpingSelector) -> None:
        self._sock = sock
        self._time = time
        self.before = self.after = 0.0

    def send(self, data: bytes) -> int:
        self._time.now += self.before
        sent = self._sock.send(data)
        self._time.now += self.after
        self.before = self.after = 0.0
        return sent

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sock, name)


class Peer:
    """The other end of a heartbeat connection, in a process that cannot be looked at from here."""

    def __init__(self, rank: int, time: JumpingSelector) -> None:
        ours, self.theirs = socket.socketpair()
        self.theirs.setblocking(False)
        self.ours = StallingSocket(ours, time)
        self.place = SimpleNamespace(process=ProcessId("elsewhere", rank, 0), address=f"10.0.0.{rank}")
        self.answers = True
        self.pings = 0

    def run(self) -> None:
        if self.answers:
            with contextlib.suppress(OSError):  # no ping, or a connection that is not needed
                pings = self.theirs.recv(4096)
                assert pings == PING * len(pings)
                self.pings += len(pings)
                self.theirs.send(PONG * len(pings))


class Kernel:
    """The control connections: the machines of ``cut_off`` peers have not acknowledged anything since then."""

    def __init__(self, time: JumpingSelector) -> None:
        self._time = time
        self.cut_off: dict[int, float] = {}
        self.poked: list[int] = []

    def poke(self, peer: int) -> bool:
        self.poked.append(peer)
        return True

    def tcp_info(self, peer: int) -> TcpInfo:
        since = self.cut_off.get(peer)
        return TcpInfo(0, 60.0, 60.0) if since is None else TcpInfo(1, 0.0, self._time.now - since)


class Member:
    """Rank 0 of a world, and what it hears of its peers: what, who, after how many seconds of silence.

    Args:
        connected: whether joining has made its heartbeat connections.
        beside: a member of another world of the same two processes.

    Attributes:
        peers: those that it pings.
        waits_for: ranks that an operation of ours waits for, and since when.
    """

    def __init__(
        self, size: int, connected: bool = True, heartbeat: Heartbeat = BEAT, beside: Member | None = None
    ) -> None:
        self.time = JumpingSelector() if beside is None else beside.time
        self.hub = Reactor(self.time.clock, self.time) if beside is None else beside.hub
        self.monitor = Monitor(self.hub) if beside is None else beside.monitor
        self.membership = Membership("w", 0, size, 1, "gloo", 300.0, 1 << 20)
        self.departed: frozenset[int] = frozenset()
        self.leaving: set[int] = set()
        self.control = Kernel(self.time)
        self.waits_for: dict[int, float] = {}
        self.heard: list[tuple[str, int, float]] = []
        self.stalls: list[float] = []
        self.bus = EventBus(Callbacks())
        self.bus.attach(lambda event: self.stalls.append(event.gap) if isinstance(event, OwnStall) else None)
        self.peers = {rank: Peer(rank, self.time) for rank in range(1, size)} if beside is None else beside.peers
        pulses: Any = {rank: peer.ours for rank, peer in self.peers.items()} if connected else {}
        self.monitor.add(self, {r: peer.place for r, peer in self.peers.items()}, heartbeat, pulses, self._dial)

    def _dial(self, peer: int, seconds: float) -> socket.socket:
        raise ConnectionRefusedError(f"rank {peer} within {seconds} s")

    def awaited(self, before: float) -> set[int]:
        return {rank for rank, since in self.waits_for.items() if since <= before}

    def peer_suspected(self, peer: int, silence: float) -> None:
        self.heard.append(("suspected", peer, silence))

    def peer_recovered(self, peer: int, silence: float) -> None:
        self.heard.append(("recovered", peer, silence))

    def peer_silent(self, peer: int, silence: float) -> None:
        self.heard.append(("lost", peer, silence))
        self.monitor.remove(self)

    def run(self, seconds: float) -> None:
        """Let time pass; peers answer at once."""
        self.time.until = self.time.now + seconds
        while self.time.now < self.time.until:
            for peer in self.peers.values():
                peer.run()
            self.hub.turn()

    def stall(self, seconds: float) -> None:
        """Wait for the next thing to do, and then not run for so long."""
        self.time.until, self.time.stall = math.inf, seconds
        self.hub.turn()

    def said(self) -> list[tuple[str, int]]:
        return [(what, peer) for what, peer, _ in self.heard]

    def close(self) -> None:
        self.hub.stop()
        self.hub.run()
        for peer in self.peers.values():
            peer.ours.close()
            peer.theirs.close()


@pytest.fixture
def member() -> Iterator[Member]:
    """One with one peer, which has answered for a while."""
    made = Member(2)
    made.run(10.0)
    yield made
    made.close()


@pytest.fixture
def member_of_eight() -> Iterator[Member]:
    made = Member(8)
    made.run(1.0)
    yield made
    made.close()


def test_a_peer_that_answers_is_pinged_once_per_interval_and_never_suspected(member: Member) -> None:
    before = member.peers[1].pings
    member.run(1000.0)
    assert member.peers[1].pings - before == pytest.approx(1000.0 / BEAT.interval, rel=0.01)
    assert member.heard == []
    assert member.stalls == []


def test_a_silent_peer_is_suspected_and_then_lost_at_the_set_times(member: Member) -> None:
    member.peers[1].answers = False
    member.run(60.0)
    assert member.said() == [("suspected", 1), ("lost", 1)]
    silences = [silence for _, _, silence in member.heard]
    assert silences == pytest.approx([BEAT.suspect_after, BEAT.lost_after], abs=EXACTLY)


def test_a_suspected_peer_that_answers_again_recovers(member: Member) -> None:
    member.peers[1].answers = False
    member.run(BEAT.suspect_after)
    assert member.said() == [("suspected", 1)]
    member.peers[1].answers = True
    member.run(60.0)
    assert member.said() == [("suspected", 1), ("recovered", 1)]


@pytest.mark.parametrize("answers", [True, False], ids=["a peer that answers", "a silent peer"])
def test_a_stall_of_ours_is_told_and_not_held_against(member: Member, answers: bool) -> None:
    member.peers[1].answers = answers
    member.run(BEAT.interval)
    member.stall(30.0)
    assert member.stalls == [pytest.approx(30.0, abs=BEAT.lost_after)]
    assert member.heard == []


def test_a_peer_that_stays_silent_after_a_stall_of_ours_is_lost_all_the_same(member: Member) -> None:
    member.peers[1].answers = False
    member.run(BEAT.interval)
    member.stall(30.0)
    member.run(BEAT.lost_after)
    assert member.said() == [("suspected", 1), ("lost", 1)]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_stall_in_the_middle_of_a_ping_accuses_nobody(member: Member, when: str) -> None:
    setattr(member.peers[1].ours, when, 1.5)
    member.run(60.0)
    assert member.stalls == [pytest.approx(1.5, abs=EXACTLY)]
    assert member.heard == []


def test_a_stall_is_told_where_no_alarm_is_set() -> None:
    """A hub that is stopped in its first call has nothing to be late for yet."""
    member = Member(2)
    with contextlib.closing(member):
        member.hub.call(lambda: setattr(member.time, "now", member.time.now + 1.5))
        member.hub.turn()
        assert member.stalls == [pytest.approx(1.5, abs=EXACTLY)]


@pytest.mark.parametrize("seconds", [0.5, 30.0])
def test_a_stall_between_two_turns_is_told(member: Member, seconds: float) -> None:
    member.time.now += seconds
    member.run(BEAT.interval)
    assert member.stalls == [pytest.approx(seconds, abs=BEAT.lost_after)]
    assert member.heard == []


def test_a_peer_that_cannot_be_reached_nor_looked_at_is_given_ten_times_as_long() -> None:
    member = Member(2, connected=False)
    with contextlib.closing(member):
        member.run(BEAT.lost_after * PATIENCE - BEAT.interval)
        assert member.said() == [("suspected", 1)]
        member.run(60.0)
        assert member.said() == [("suspected", 1), ("lost", 1)]
        assert member.heard[-1][2] == pytest.approx(BEAT.lost_after * PATIENCE, abs=EXACTLY)


def test_a_patient_world_does_not_cost_an_impatient_one_its_peer() -> None:
    """Both worlds share the connection that is pinged; it was pinged as seldom as the first one wants."""
    patient = Member(2, heartbeat=Heartbeat(interval=30, suspect_after=60, lost_after=90))
    with contextlib.closing(patient):
        patient.run(20.0)
        assert patient.peers[1].pings == 1
        impatient = Member(2, connected=False, beside=patient)
        impatient.run(10.0)
        assert impatient.peers[1].pings > 40, "not pinged as often as the impatient world wants"
        patient.peers[1].answers = False
        impatient.run(1.0)
    assert impatient.said() == [("suspected", 1), ("lost", 1)]
    assert patient.heard == []


def test_only_the_next_three_are_pinged(member_of_eight: Member) -> None:
    assert [rank for rank, peer in member_of_eight.peers.items() if peer.pings] == [1, 2, 3]


def test_an_awaited_peer_that_is_not_pinged_is_lost_when_its_machine_acknowledges_nothing(
    member_of_eight: Member,
) -> None:
    member = member_of_eight
    member.waits_for = {5: member.time.now}
    member.run(10.0)
    assert set(member.control.poked) == {5}
    assert member.heard == []
    member.control.cut_off[5] = member.time.now
    member.run(10.0)
    assert member.said() == [("suspected", 5), ("lost", 5)]


def test_a_stall_of_ours_is_not_held_against_an_awaited_peer_either(member_of_eight: Member) -> None:
    member = member_of_eight
    member.waits_for = {5: member.time.now}
    member.run(2 * BEAT.interval)
    member.control.cut_off[5] = member.time.now
    member.stall(30.0)
    member.run(BEAT.interval)
    assert ("lost", 5) not in member.said()
    member.run(BEAT.lost_after + BEAT.interval)
    assert member.said() == [("suspected", 5), ("lost", 5)]
