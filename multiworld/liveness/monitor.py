"""The clock that judges silence: one connection per peer process, shared by all worlds that it is a member of."""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from multiworld.config import Heartbeat
from multiworld.liveness.neighbour import PATIENCE, ProcessId
from multiworld.liveness.pulse import HELLO, PING

if TYPE_CHECKING:
    from multiworld.net.hub import Hub
    from multiworld.rendezvous.ledger import Claim
    from multiworld.session import Session

Address = tuple[str, int]


@dataclass(slots=True, eq=False)
class Watch:
    """One world's interest in one peer."""

    session: Session
    peer: int
    heartbeat: Heartbeat
    process: ProcessId
    #: silence from before the world began is not held against a peer: others may have listened less often
    since: float
    suspected: bool = False


class PeerProcess:
    """A process that peers of ours live in: the connection to its pulse, and when it was last heard."""

    def __init__(self, hub: Hub, address: Address) -> None:
        self.watches: list[Watch] = []
        self.last_heard = time.monotonic()
        self._hub = hub
        self._address = address
        self._sock: socket.socket | None = None
        self._connected = False
        self._next_ping = 0.0
        self._connect()

    def watch(self, watch: Watch) -> None:
        """Look after one more world; it may want to ping sooner than those before it."""
        self.watches.append(watch)
        self._next_ping = 0.0

    def tick(self, now: float) -> None:
        """Ping if it is time, and judge the silence for each world."""
        if now >= self._next_ping:
            self._next_ping = now + min(watch.heartbeat.interval for watch in self.watches)
            self._ping()
        for watch in tuple(self.watches):
            _judge(watch, now - max(self.last_heard, watch.since))

    def forgive(self, gap: float) -> None:
        """We did not listen for ``gap`` seconds: nobody is accused for that."""
        now = time.monotonic()
        self.last_heard = min(now, self.last_heard + gap)
        for watch in self.watches:
            watch.since = min(now, watch.since + gap)

    def close(self) -> None:
        """Close the connection."""
        if self._sock is not None:
            self._hub.unwatch(self._sock)
            self._sock.close()
            self._sock = None

    def drop_in_child(self) -> None:
        """Close our copy in a forked child."""
        if self._sock is not None:
            self._sock.close()

    def _connect(self) -> None:
        family = socket.AF_INET6 if ":" in self._address[0] else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if sock.connect_ex(self._address) not in (0, errno.EINPROGRESS):
            sock.close()
            return
        self._sock, self._connected = sock, False
        self._hub.watch(sock, selectors.EVENT_READ | selectors.EVENT_WRITE, self._ready)

    def _ready(self, events: int) -> None:
        sock = self._sock
        if sock is None:
            return
        try:
            if events & selectors.EVENT_WRITE and not self._connected:
                self._connected = True
                self._hub.watch(sock, selectors.EVENT_READ, self._ready)
                sock.send(HELLO + PING)
            if events & selectors.EVENT_READ:
                if not sock.recv(4096):
                    raise ConnectionResetError
                self.last_heard = time.monotonic()
        except BlockingIOError:
            return
        except OSError:
            self.close()  # tried again at the next ping; that the process is gone shows on its other connections

    def _ping(self) -> None:
        if self._sock is None:
            self._connect()
        elif self._connected:
            with contextlib.suppress(OSError):
                self._sock.send(PING)


def _judge(watch: Watch, silence: float) -> None:
    if silence >= watch.heartbeat.lost_after and not _starved(watch, silence):
        watch.session.peer_silent(watch.peer, silence)
    elif silence >= watch.heartbeat.suspect_after and not watch.suspected:
        watch.suspected = True
        watch.session.peer_suspected(watch.peer, silence)
    elif silence < watch.heartbeat.suspect_after and watch.suspected:
        watch.suspected = False
        watch.session.peer_recovered(watch.peer, silence)


def _starved(watch: Watch, silence: float) -> bool:
    """Whether the peer is silent only because its machine, which is ours, is overloaded."""
    return silence < watch.heartbeat.lost_after * PATIENCE and bool(watch.process.running())


class Monitor:
    """All peer processes. Everything runs in the hub's thread."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._processes: dict[Address, PeerProcess] = {}
        hub.on_tick(self._tick)
        hub.on_stall(self._stall)
        hub.on_close(self._close)

    def add(self, session: Session, peers: dict[int, Claim], heartbeat: Heartbeat) -> None:
        """Watch ``peers``, by world rank, for ``session``. From any thread."""

        def work() -> None:
            for peer, claim in peers.items():
                address = claim.address, claim.pulse
                process = self._processes.get(address)
                if process is None:
                    process = self._processes[address] = PeerProcess(self._hub, address)
                process.watch(Watch(session, peer, heartbeat, claim.process, time.monotonic()))

        self._hub.call(work)

    def remove(self, session: Session) -> None:
        """Stop watching for ``session``. From any thread."""
        self._hub.call(lambda: self._remove(session))

    def drop_in_child(self) -> None:
        """Close our copies in a forked child."""
        for process in self._processes.values():
            process.drop_in_child()

    def _remove(self, session: Session) -> None:
        for address, process in tuple(self._processes.items()):
            process.watches = [watch for watch in process.watches if watch.session is not session]
            if not process.watches:
                process.close()
                del self._processes[address]

    def _tick(self, now: float) -> None:
        for process in tuple(self._processes.values()):
            if process.watches:
                process.tick(now)

    def _stall(self, gap: float) -> None:
        sessions = {watch.session for process in self._processes.values() for watch in process.watches}
        for process in self._processes.values():
            process.forgive(gap)
        for bus, session in {session.bus: session for session in sessions}.items():
            session.report_stall(bus, gap)

    def _close(self) -> None:
        for process in self._processes.values():
            process.close()
        self._processes.clear()
