"""Peers that an operation waits for, and that this process does not ping: can their host still be reached?

A member pings only its successors in the ring. That is enough to notice every member that is stopped, but not a cut
between two members that are no neighbours. So once an operation has waited for a peer for longer than an interval,
an empty line goes out on the control connection. The kernel knows whether it was acknowledged. That takes no further
connection, and no thread of the peer has to run. A peer that is slow, starved or stopped raises no false alarm; its
predecessors in the ring notice that.
"""

from __future__ import annotations

from collections.abc import Collection

from multiworld.config import Heartbeat
from multiworld.liveness.peer import SLACK, Watch, Watched
from multiworld.transport.reactor import Clock

#: so many peers are asked at a time, each until it answers; then it is the turn of others
AT_ONCE = 4
#: how long the kernel of a peer may put off an acknowledgement, or take to send it again
ACK_SECONDS = 0.3


class Reach:
    """The questions of one session to the kernels of awaited peers. For the hub's thread.

    Args:
        session: whose operations wait.
        heartbeat: how long a silence may last.
        clock: monotonic seconds.
    """

    def __init__(self, session: Watched, heartbeat: Heartbeat, clock: Clock) -> None:
        self._session = session
        self._heartbeat = heartbeat
        self._clock = clock
        self._asked: dict[int, Watch] = {}
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
        for peer in tuple(self._asked):
            self._look(peer, now, peer in wanted)
        self._ask(wanted)

    def forgive(self, gap: float) -> None:
        """We did not listen for ``gap`` seconds."""
        now = self._clock()
        for watch in self._asked.values():
            watch.since = min(now, watch.since + gap)

    def _look(self, peer: int, now: float, wanted: bool) -> None:
        watch, info = self._asked[peer], self._session.control.tcp_info(peer)
        if info is None or info.unanswered == 0 or not wanted:
            watch.judge(0.0, lost=False)
            del self._asked[peer]
            return
        # In this order: this thread may lose the GIL for long between any two steps.
        silence = now - max(watch.since, self._clock() - info.ack_age)
        silence = silence if silence > ACK_SECONDS else 0.0
        watch.judge(silence, silence >= self._heartbeat.lost_after)

    def _ask(self, wanted: set[int]) -> None:
        """Take up those whose turn it is: the ranks behind the last that was asked, all round."""
        size = self._session.membership.size
        for peer in sorted(wanted - self._asked.keys(), key=lambda rank: (rank - self._last - 1) % size):
            if len(self._asked) >= AT_ONCE:
                return
            self._last = peer
            if self._session.control.poke(peer):
                self._asked[peer] = Watch(self._session, peer, self._heartbeat, self._clock())
