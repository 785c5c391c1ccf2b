"""The choice of who watches whom, with one connection per peer process, shared by all worlds; ``peer`` judges.

A member does not watch everybody, which would cost the square of their number, but its next few successors in the order
of ranks; those that have left are skipped. That is enough. Let any members be lost at once, but not all. Going down the
ring from a live member, the first lost one comes right behind a live one, which watches it. So at least one live member
notices, breaks the world, and tells all members over the control connections; which of the lost ones it names does not
matter. The same holds for each side of a network that is cut into parts: each side has a member whose successor is on
another one. With more than one successor, worlds of up to four are a full mesh. A slow dial of one member leaves no
other one unwatched.

A ring cannot see a cut between two members that are no neighbours while others see both. It does not matter until one
of them waits for the other: see ``Reach``.
"""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Protocol, TypeVar

from multiworld.config import Heartbeat
from multiworld.events import OwnStall
from multiworld.liveness.neighbour import ProcessId
from multiworld.liveness.peer import SLACK, PeerProcess, Watch, Watched
from multiworld.transport.reactor import Clock, Reactor

#: how many successors a member watches; worlds of one more than that are watched by everybody
SUCCESSORS = 3


def watched_by(rank: int, size: int, departed: Collection[int], leaving: Collection[int]) -> tuple[int, ...]:
    """The ranks that ``rank`` watches: not the ``departed``. Those that are ``leaving`` are watched as long as their
    last data is awaited, and do not count: the ranks behind them must not be left alone.
    """
    chosen: list[int] = []
    lasting = 0
    for step in range(1, size):
        peer = (rank + step) % size
        if peer in departed:
            continue
        chosen.append(peer)
        lasting += peer not in leaving
        if lasting == SUCCESSORS:
            break
    return tuple(chosen)


#: so many peers are asked at a time, each until it answers; then it is the turn of others
AT_ONCE = 4
#: how long the kernel of a peer may put off an acknowledgement, or take to send it again
ACK_SECONDS = 0.3


class Reach:
    """The questions of one session to the kernels of awaited peers that it does not ping. For the hub's thread.

    Once an operation has waited for a peer for longer than an interval, an empty line goes out on the control
    connection. The kernel knows whether it was acknowledged. That takes no further connection, and no thread of the
    peer has to run. A peer that is slow, starved or stopped raises no false alarm; its predecessors in the ring notice
    that.
    """

    def __init__(self, session: Watched, heartbeat: Heartbeat, clock: Clock) -> None:
        self._session = session
        self._heartbeat = heartbeat
        self._clock = clock
        #: the questions that are under way
        self.asked: dict[int, Watch] = {}
        self._last = session.membership.rank
        self._next_look = 0.0

    def tick(self, now: float, watched: Collection[int], unreached: Collection[int]) -> None:
        """Ask and judge, if it is time. Peers in ``unreached`` should be pinged, but cannot be now."""
        interval = self._heartbeat.interval
        if now < self._next_look - SLACK * interval:
            return
        self._next_look = now + interval
        wanted = self._session.awaited(now - interval) | set(unreached)
        wanted -= set(watched) | self._session.departed
        for peer in tuple(self.asked):
            self._look(peer, now, peer in wanted)
        self._ask(wanted)

    def forgive(self, gap: float) -> None:
        """We did not listen for ``gap`` seconds."""
        now = self._clock()
        for watch in self.asked.values():
            watch.since = min(now, watch.since + gap)

    def _look(self, peer: int, now: float, wanted: bool) -> None:
        watch, info = self.asked[peer], self._session.control.tcp_info(peer)
        if info is None or info.unanswered == 0 or not wanted:
            watch.judge(0.0, lost=False)
            del self.asked[peer]
            return
        # In this order: this thread may lose the GIL for long between any two steps.
        silence = now - max(watch.since, self._clock() - info.ack_age)
        silence = silence if silence > ACK_SECONDS else 0.0
        watch.judge(silence, silence >= self._heartbeat.lost_after)

    def _ask(self, wanted: set[int]) -> None:
        """Take up those whose turn it is: the ranks behind the last that was asked, all round."""
        size = self._session.membership.size
        for peer in sorted(wanted - self.asked.keys(), key=lambda rank: (rank - self._last - 1) % size):
            if len(self.asked) >= AT_ONCE:
                return
            self._last = peer
            if self._session.control.poke(peer):
                self.asked[peer] = Watch(self._session, peer, self._heartbeat, self._clock())


#: when to go on after an error of ours
AGAIN_SECONDS = 0.2
Key = tuple[ProcessId, str]
#: connects to the peer of a rank within some seconds
DialPeer = Callable[[int, float], socket.socket]


class PeerPlace(Protocol):
    """Where a peer is: a claim of the rendezvous is one."""

    @property
    def process(self) -> ProcessId: ...
    @property
    def address(self) -> str: ...


Place = TypeVar("Place", bound=PeerPlace)


class _Member:
    """One session and the peers that it watches now."""

    def __init__(
        self, session: Watched, claims: Sequence[PeerPlace], heartbeat: Heartbeat, dial: DialPeer, clock: Clock
    ) -> None:
        self.session = session
        self.claims = claims
        self.heartbeat = heartbeat
        self.watches: dict[int, tuple[PeerProcess, Watch]] = {}
        self.reach = Reach(session, heartbeat, clock)
        self._dial = dial
        self._left = -1, -1
        self._pings_all = False

    def ring(self) -> tuple[int, ...] | None:
        """The ranks to watch; None if they have not changed since the last call."""
        session, us = self.session, self.session.membership
        left = len(session.departed), len(session.leaving)
        if left == self._left:
            return None
        self._left = left
        ring = watched_by(us.rank, us.size, session.departed, frozenset(session.leaving))
        self._pings_all = len(ring) == us.size - 1 - len(session.departed)
        return ring

    @property
    def asks(self) -> bool:
        """Whether kernels of peers may have to be asked although all that are watched are connected."""
        return not self._pings_all or bool(self.reach.asked)

    def dial(self, peer: int, process: PeerProcess) -> None:
        """Make the connection to ``peer`` again, if it does not leave."""
        if peer not in self.session.leaving:
            process.dial(lambda seconds: self._dial(peer, seconds))


class Monitor:
    """All peer processes. Everything runs in the hub's thread, by the hub's clock."""

    def __init__(self, hub: Reactor) -> None:
        self._hub = hub
        self._processes: dict[Key, PeerProcess] = {}
        self._members: dict[Watched, _Member] = {}
        #: connections that the hub has not taken over yet: a forked child must not keep them
        self._arriving: dict[Watched, dict[int, socket.socket]] = {}
        self._closed = False
        hub.on_stall(self._stall)
        hub.on_close(self._close)

    def add(
        self,
        session: Watched,
        claims: Sequence[PeerPlace],
        heartbeat: Heartbeat,
        pulses: dict[int, socket.socket],
        dial: DialPeer,
    ) -> None:
        """Watch peers for ``session``, on the connections ``pulses`` that joining has made. From any thread."""

        def work() -> None:
            if not self._closed:
                member = self._members[session] = _Member(session, claims, heartbeat, dial, self._hub.clock)
                self._watch_ring(member, pulses)
                self._hub.alarm(self._tick, self._hub.clock())  # in this turn, once for all that come in it
            for sock in self._arriving.pop(session).values():  # of peers that are not watched
                sock.close()

        self._arriving[session] = pulses
        self._hub.call(work)

    def remove(self, session: Watched) -> None:
        """Stop watching for ``session``; connections stay until ``tidy``. From any thread."""
        self._hub.call(lambda: self._remove(session))

    def tidy(self) -> None:
        """Close the connections that nobody needs any more. From any thread."""
        self._hub.call(self._drop_unwatched)

    def unconnected(self, claims: Iterable[Place]) -> list[Place]:
        """Those whose process no connection leads to yet, as far as is seen now. From any thread."""
        return [claim for claim in claims if not self._connected(claim)]

    def _connected(self, claim: PeerPlace) -> bool:
        process = self._processes.get((claim.process, claim.address))
        return process is not None and process.connected

    def _watch_ring(self, member: _Member, pulses: dict[int, socket.socket]) -> None:
        """Watch exactly the peers that ``member`` has to watch now."""
        ring = member.ring()
        if ring is None:
            return
        for peer in set(member.watches) - set(ring):
            process, watch = member.watches.pop(peer)
            process.unwatch(watch)
        for peer in ring:
            if peer not in member.watches:
                self._watch(member, peer, pulses.pop(peer, None))
        self._drop_unwatched()

    def _watch(self, member: _Member, peer: int, sock: socket.socket | None) -> None:
        claim = member.claims[peer]
        key = claim.process, claim.address
        process = self._processes.get(key)
        if process is None:
            process = self._processes[key] = PeerProcess(self._hub, claim.process)
        if sock is not None:
            process.adopt(sock)
        watch = Watch(member.session, peer, member.heartbeat, self._hub.clock())
        process.watch(watch)
        member.watches[peer] = process, watch

    def _remove(self, session: Watched) -> None:
        member = self._members.pop(session, None)
        if member is None:
            return
        for process, watch in member.watches.values():
            process.unwatch(watch)
        if not self._members:
            self._hub.alarm(self._tick, math.inf)

    def _drop_unwatched(self) -> None:
        for key, process in tuple(self._processes.items()):
            if not process.watches:
                process.close()
                del self._processes[key]

    def _tick(self, now: float) -> None:
        """Ping, read, judge. What breaks a world here removes its session later, in this thread."""
        self._hub.alarm(self._tick, now + AGAIN_SECONDS)  # even if something fails on the way
        for process in self._watched():
            process.tick(now)
        connected = all(process.connected for process in self._watched())
        for member in tuple(self._members.values()):
            self._watch_ring(member, {})
            if not connected or member.asks:
                self._tend(member, now)
        due = min((process.next_due(now) for process in self._watched()), default=math.inf)
        self._hub.alarm(self._tick, due)

    def _watched(self) -> list[PeerProcess]:
        return [process for process in self._processes.values() if process.watches]

    def _tend(self, member: _Member, now: float) -> None:
        """Connect to the peers that we watch, and ask the kernel about those that cannot be pinged."""
        unreached = [peer for peer, (process, _) in member.watches.items() if not process.connected]
        for peer in unreached:
            member.dial(peer, member.watches[peer][0])
        member.reach.tick(now, member.watches.keys() - set(unreached), unreached)

    def _stall(self, gap: float) -> None:
        for process in self._processes.values():
            process.forgive(gap)
        for member in self._members.values():
            member.reach.forgive(gap)
        for bus in {session.bus for session in self._members}:
            bus.publish(OwnStall(gap=gap))

    def _close(self) -> None:
        self._closed = True
        for process in self._processes.values():
            process.close()
        self._processes.clear()
        self._members.clear()
