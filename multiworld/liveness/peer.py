"""A peer process: the heartbeat connection to it, when it was last heard, and what each world makes of its silence."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from multiworld.config import Heartbeat
from multiworld.events import EventBus
from multiworld.liveness.neighbour import PATIENCE, ProcessId, Starvation
from multiworld.liveness.pulse import MAX_AT_ONCE, PING
from multiworld.matching.membership import Membership
from multiworld.transport.reactor import Reactor

#: how long one attempt to connect again may take, in seconds
DIAL_SECONDS = 2.0
#: what is due within this share of the interval is done at once: one wake-up instead of two
SLACK = 0.25

# struct tcp_info of <linux/tcp.h>: tcpi_snd_mss at 16, tcpi_unacked at 24, tcpi_last_data_recv and tcpi_last_ack_recv
# at 52, in ms. The kernel only ever appends to it.
_TCP_INFO: Final = struct.Struct("=16xI4xI24xII")

Dial = Callable[[float], socket.socket]


@dataclass(frozen=True, slots=True)
class TcpInfo:
    """Segments that the peer's kernel has not acknowledged, and seconds since data and an acknowledgement last came."""

    unanswered: int
    data_age: float
    ack_age: float


def tcp_info(sock: socket.socket) -> TcpInfo | None:
    """Ask the kernel about a connection; None if it does not say."""
    try:
        raw = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    except OSError:
        return None
    if len(raw) < _TCP_INFO.size:
        return None
    # An imitation of Linux may leave zeros in a part of it; no real connection has segments of 0.
    segment, unanswered, data_age, ack_age = _TCP_INFO.unpack(raw)
    return TcpInfo(unanswered, data_age / 1000, ack_age / 1000) if segment else None


class ControlSockets(Protocol):
    """The control connections of a session, as far as they show whether a host can be reached."""

    def tcp_info(self, peer: int) -> TcpInfo | None:
        """Ask the kernel about the connection to ``peer``; None if it is closed, or the kernel does not say."""

    def poke(self, peer: int) -> bool:
        """Send what means nothing to ``peer``, for its kernel to acknowledge; whether it was sent."""


class Watched(Protocol):
    """A session whose peers are watched; all in the hub's thread."""

    membership: Membership
    bus: EventBus
    leaving: set[int]

    @property
    def departed(self) -> frozenset[int]: ...
    @property
    def control(self) -> ControlSockets: ...
    def awaited(self, before: float) -> set[int]: ...
    def peer_silent(self, peer: int, silence: float) -> None: ...
    def peer_suspected(self, peer: int, silence: float) -> None: ...
    def peer_recovered(self, peer: int, silence: float) -> None: ...


@dataclass(slots=True, eq=False)
class Watch:
    """One world's interest in one peer. Silence before ``since`` does not count: others may have listened less
    often."""

    session: Watched
    peer: int
    heartbeat: Heartbeat
    since: float
    suspected: bool = False

    def judge(self, silence: float, lost: bool) -> None:
        """Tell the world of a silence, and whether the peer is lost by it."""
        if lost:
            self.session.peer_silent(self.peer, silence)
        elif silence >= self.heartbeat.suspect_after and not self.suspected:
            self.suspected = True
            self.session.peer_suspected(self.peer, silence)
        elif silence < self.heartbeat.suspect_after and self.suspected:
            self.suspected = False
            self.session.peer_recovered(self.peer, silence)


class PeerProcess:
    """A process that peers of ours live in, shared by all worlds of ours that watch it. For the hub's thread.

    All times err on the side of the peer: this thread may lose the GIL for seconds between any two steps.

    Answers are not waited for: they are read when the next ping is due, or a silence is to be judged. The kernel knows
    when they came. So a peer costs one wake-up of ours per interval, and several peers share it.

    Attributes:
        last_heard: monotonic time when it was alive; it may have been heard later, which the kernel knows.
    """

    def __init__(self, hub: Reactor, process: ProcessId) -> None:
        self.watches: list[Watch] = []
        self._heartbeats: Counter[Heartbeat] = Counter()  # of the watches: most worlds have the same one
        self._hub = hub
        self._clock = hub.clock
        self.last_heard = self._clock()
        self._process = process
        self._sock: socket.socket | None = None
        self._asked: deque[float] = deque()  # when the pings without an answer were sent
        self._next_ping = 0.0
        self._dialling = self._closed = False
        self._suspects = False
        self._starvation: Starvation | None = None

    @property
    def connected(self) -> bool:
        return self._sock is not None

    def watch(self, watch: Watch) -> None:
        """Look after one more world; it may want to ping sooner than those before it."""
        self.watches.append(watch)
        self._heartbeats[watch.heartbeat] += 1
        self._next_ping = 0.0

    def unwatch(self, watch: Watch) -> None:
        """Look after one world less."""
        self.watches.remove(watch)
        self._heartbeats[watch.heartbeat] -= 1
        if not self._heartbeats[watch.heartbeat]:
            del self._heartbeats[watch.heartbeat]

    def adopt(self, sock: socket.socket) -> None:
        """Ping on ``sock``, unless there is a connection already."""
        if self._sock is not None or self._closed:
            sock.close()
            return
        sock.setblocking(False)
        self._sock = sock
        self._asked.clear()
        self.last_heard = self._clock()

    def dial(self, dial: Dial) -> None:
        """Connect, in a thread of its own, unless that is under way: the peer's Python has to answer."""
        if self._dialling or self._sock is not None:
            return
        self._dialling = True
        threading.Thread(target=self._dial, args=(dial,), name="mw-pulse-dial", daemon=True).start()

    def tick(self, now: float) -> None:
        """Read what has come, judge the silence for each world, and ping if it is time."""
        self._read()
        if self._suspects or now - self.last_heard >= min(each.suspect_after for each in self._heartbeats):
            self._judge(now)
        interval = min(each.interval for each in self._heartbeats)
        if now >= self._next_ping - SLACK * interval:
            self._next_ping = now + interval
            self._ping()

    def next_due(self, now: float) -> float:
        """When ``tick`` has something to do."""
        due = self._next_ping
        if (self._asked or self._sock is None) and self.last_heard < due:
            for heartbeat in self._heartbeats:
                began = self._silent_since(heartbeat, now)
                for limit in (heartbeat.suspect_after, heartbeat.lost_after):
                    if now < began + limit < due:
                        due = began + limit
        return due

    def forgive(self, gap: float) -> None:
        """We did not listen for ``gap`` seconds: do not hold that against the peer."""
        now = self._clock()
        self.last_heard = min(now, self.last_heard + gap)
        self._asked = deque(min(now, asked + gap) for asked in self._asked)
        for watch in self.watches:
            watch.since = min(now, watch.since + gap)

    def close(self) -> None:
        self._closed = True
        self._drop()

    def _silent_since(self, heartbeat: Heartbeat, now: float) -> float:
        """When its silence began: at its last sign of life, but no sooner than an interval before the first question
        that it has not answered: before that, nothing was asked."""
        if self._sock is None:
            return self.last_heard
        return max(self.last_heard, self._asked[0] - heartbeat.interval) if self._asked else now

    def _refine(self) -> None:
        """Ask the kernel when the last answer came: it was no sooner than its question, maybe much later."""
        info = tcp_info(self._sock) if self._sock is not None else None
        if info is not None:
            self.last_heard = max(self.last_heard, self._clock() - info.data_age)

    def _judge(self, now: float) -> None:
        self._refine()
        starved: bool | None = None  # looked at once for all
        for watch in tuple(self.watches):
            silence = now - max(watch.since, self._silent_since(watch.heartbeat, now))
            lost = silence >= watch.heartbeat.lost_after
            if lost and silence < watch.heartbeat.lost_after * PATIENCE:
                starved = self._excused() if starved is None else starved
                lost = not starved
            watch.judge(silence, lost)
        self._suspects = any(watch.suspected for watch in self.watches)
        if not self._suspects:
            self._starvation = None
        elif self._starvation is None:  # with this it is compared when it is about to be lost
            self._starvation = Starvation(self._process)

    def _excused(self) -> bool:
        """Return whether there is a reason for its silence other than its end."""
        if self._sock is None:
            # Python there has not answered our greeting, maybe because it holds the GIL: lost only if we know more.
            return self._process.running() is not False
        if self._starvation is None:
            self._starvation = Starvation(self._process)
        return self._starvation.evident()

    def _read(self) -> None:
        sock = self._sock
        if sock is None:
            return
        try:
            answers = len(sock.recv(4096))
        except BlockingIOError:
            return
        except OSError:
            answers = 0
        if not answers:
            self._drop()  # made again; that the process is gone shows on its other connections
            return
        for _ in range(min(answers, len(self._asked))):
            self.last_heard = max(self.last_heard, self._asked.popleft())  # or later: see ``_refine``

    def _ping(self) -> None:
        if self._sock is None or len(self._asked) >= MAX_AT_ONCE:
            return
        try:
            self._sock.send(PING)
        except BlockingIOError:
            return
        except OSError:
            self._drop()
            return
        self._asked.append(self._clock())  # after it: this thread may have lost the GIL for long meanwhile

    def _drop(self) -> None:
        if self._sock is not None:
            self._sock.close()
            self._sock = None
            self._asked.clear()
            self.last_heard = self._clock()  # it was there until now; from now on it is not reached

    def _dial(self, dial: Dial) -> None:
        sock: socket.socket | None = None
        with contextlib.suppress(OSError):  # tried again as long as a world watches it
            sock = dial(DIAL_SECONDS)
        self._hub.call(lambda: self._dialled(sock))

    def _dialled(self, sock: socket.socket | None) -> None:
        self._dialling = False
        if sock is not None:
            self.adopt(sock)
