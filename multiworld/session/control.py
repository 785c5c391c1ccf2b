"""The control connections of a session: why a peer ends, told before its data connection does. In the hub's thread."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Collection, Iterable
from typing import Any, Final, Protocol

from multiworld.errors import BrokenWorldException, LossReason, OpTimeout, PeerLost
from multiworld.liveness.monitor import watched_by
from multiworld.liveness.peer import TcpInfo, tcp_info
from multiworld.matching.membership import Membership
from multiworld.session.door import Door
from multiworld.transport.lines import Lines
from multiworld.transport.reactor import Reactor

MAX_BYTES = 1 << 16
#: reports of a break that are remembered; a rogue may make up any number
MOST_REPORTS = 64
#: how long the reason for the end of a data connection may take to arrive on the control connections
EXPLANATION_SECONDS = 0.05
#: who is lost in these ways is not waited for where the others go on without the lost
GONE: Final = (LossReason.EOF, LossReason.SILENCE)
CANCELLED_CAUSE = "the await of it was cancelled there: by a time limit, by the end of its task, or by Ctrl-C"


class ControlOwner(Protocol):
    """The session that the connections belong to."""

    membership: Membership
    leaving: set[int]
    gone: set[int]

    @property
    def departed(self) -> frozenset[int]: ...
    @property
    def hub(self) -> Reactor: ...
    @property
    def failure(self) -> BrokenWorldException | None: ...
    @property
    def door(self) -> Door: ...
    def lost(self, peer: int, how: LossReason, what: str) -> None: ...
    def break_(self, error: BrokenWorldException, *, tell: bool = True) -> None: ...
    def end_in_order(self, error: BrokenWorldException, ended: Collection[int]) -> None: ...
    def on_bye(self, peer: int, *, gives_up: bool) -> None: ...
    def drain(self, peer: int) -> None: ...


class Control:
    """One control connection per peer, by world rank."""

    def __init__(self, session: ControlOwner, lines: Lines) -> None:
        self._session = session
        self._lines = lines
        self._telling = threading.Lock()
        #: lines that have not come whole
        self._said: dict[int, bytes] = {}
        #: reports of a break, after which another like it tells nothing
        self._known: set[bytes] = set()
        #: who is lost, by the reports of others
        self._reported: set[tuple[int, ...]] = set()
        #: of these peers the next generation may want the connections
        self._kept: frozenset[int] = frozenset()

    def start(self) -> None:
        """Listen to the peers, once the session is whole."""
        self._lines.watch(self._session.hub, self.look)

    def explain(self, peer: int, error: OSError | None) -> None:
        """The data connection to ``peer`` ended: break the world with the reason, as far as one is told."""

        def look() -> None:
            self.look()
            self._session.hub.call_later(EXPLANATION_SECONDS, conclude)

        def conclude() -> None:
            if peer in self._session.leaving:
                self._session.on_bye(peer, gives_up=True)
            else:
                self._session.lost(
                    peer, LossReason.EOF, f"rank {peer} closed its connection" + (f": {error}" if error else "")
                )

        self._session.hub.call(look)

    def look(self) -> None:
        """Take in what the peers have said so far. In the hub's thread."""
        for peer in self._lines.ready():
            self._read(peer)

    def tcp_info(self, peer: int) -> TcpInfo | None:
        """Ask the kernel about the connection to ``peer``; None if it is closed, or the kernel does not say."""
        sock = self._lines.socks.get(peer)
        return tcp_info(sock) if sock is not None else None

    def poke(self, peer: int) -> bool:
        """Send what means nothing to ``peer``, for its kernel to acknowledge; whether it was sent. In the hub's
        thread."""
        sock = self._lines.socks.get(peer)
        with contextlib.suppress(OSError):
            return sock is not None and sock.send(b"\n") == 1
        return False

    def tell_break(self, error: BrokenWorldException, *, orderly: bool) -> None:
        """Tell all peers why the world broke here; ``orderly`` if all that was sent arrives.

        All notice the end of a process, and one that has told all of it is enough.
        """
        ranks = list(error.ranks) if isinstance(error, (PeerLost, OpTimeout)) else [self._session.membership.rank]
        how = error.how.value if isinstance(error, PeerLost) else None
        said = {"ranks": ranks, "what": error.what, "kind": type(error).__name__, "how": how, "orderly": orderly}
        message = {"say": "break", **said}
        if how == LossReason.EOF:  # which is noticed in the hub's thread
            self.look()
            if tuple(ranks) in self._reported:
                self._tell_on(message, ranks)
                return
        self._tell(message, self._lines.socks)

    def _tell_on(self, message: dict[str, Any], ranks: Collection[int]) -> None:
        """Tell those whom we watch of a break that another member tells all of, and the lost, which may be there.

        Who has told may be cut off from some, or end before it has told all. A member that nobody who watches it can
        reach is lost itself.
        """
        us, departed = self._session.membership, self._session.departed
        watched = watched_by(us.rank, us.size, departed | set(ranks), self._session.leaving)
        self._tell(message, {*watched, *ranks})

    def tell_bye(self, *, returns: bool) -> None:
        """Tell all peers that we leave in good order; ``returns`` if we go on in the next generation."""
        self._tell({"say": "bye", "returns": returns}, self._lines.socks)

    def tell_pending(self, waiting: tuple[str, ...]) -> None:
        """Tell all peers which newcomers wait."""
        self._tell({"say": "pending", "waiting": waiting}, self._lines.socks)

    def keep(self, peers: Iterable[int]) -> None:
        """Let ``close`` leave out the connections to ``peers``, until they are given up, or it is said again."""
        self._kept = frozenset(peers)

    def give_up(self) -> Lines:
        """Hand over the connections that were kept and are still there. Not from the hub's thread."""
        found = Lines()

        def take() -> None:
            nonlocal found
            self.look()
            self._drop_others()
            with self._telling:  # else a report of this generation might go out in the next one
                found, self._lines = self._lines, Lines()
            found.rest()

        self._session.hub.call_and_wait(take)
        return found

    def close(self) -> None:
        """Close the connections, after what was told. From any thread."""
        self._session.hub.call(self._close_all)

    def _tell(self, message: dict[str, Any], peers: Iterable[int]) -> None:
        said = json.dumps(message).encode() + b"\n"
        with self._telling:
            for peer in tuple(peers):
                with contextlib.suppress(OSError):
                    self._lines.send(peer, said)

    def _close_all(self) -> None:
        self._drop_others()
        if not self._lines.socks:
            over, self._lines = self._lines, Lines()  # nobody is to go on with what closes soon
            over.close()

    def _drop_others(self) -> None:
        for peer in self._lines.socks.keys() - self._kept:
            self._lines.drop(peer)

    def _read(self, peer: int) -> None:
        if peer not in self._lines.socks:
            return
        try:
            data = self._lines.recv(peer, MAX_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        *lines, rest = (self._said.pop(peer, b"") + data).split(b"\n")
        self._said[peer] = rest if data and len(rest) <= MAX_BYTES else b""
        for said in filter(None, lines):  # an empty one only asks whether we can be reached; see ``poke``
            self._take(peer, said)
        if len(rest) > MAX_BYTES:
            self._session.lost(
                peer, LossReason.PROTOCOL, f"rank {peer} sent a line without end on its control connection"
            )
        elif not data:
            self._ended(peer)

    def _take(self, peer: int, line: bytes) -> None:
        if line in self._known:  # as all members tell all others the same
            return
        try:
            self._handle(peer, json.loads(line))
            if self._session.failure is not None and b'"break"' in line and len(self._known) < MOST_REPORTS:
                self._known.add(line)
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            what = f"rank {peer} sent on its control connection what cannot be right: {error}"
            self._session.lost(peer, LossReason.PROTOCOL, what)

    def _break(self, message: dict[str, Any], error: PeerLost) -> None:
        """Break the world as a peer has told, and tell it on: of what all see themselves, to some."""
        seen_by_all = message.get("how") == LossReason.EOF
        if seen_by_all:
            self._tell_on(message, error.ranks)
        self._session.break_(error, tell=not seen_by_all)

    def _ended(self, peer: int) -> None:
        self._lines.drop(peer)
        if peer not in self._session.leaving and self._session.failure is None:
            self._session.lost(peer, LossReason.EOF, f"rank {peer} closed its connections without a word")

    def _handle(self, peer: int, message: dict[str, Any]) -> None:
        if message.get("say") == "bye":
            # Its data connection says so too, after the last of its data; that one counts.
            self._session.leaving.add(peer)
            if message.get("returns") is not True:
                self._session.gone.add(peer)
            self._session.drain(peer)
        elif message.get("say") == "pending" and peer == 0:
            self._session.door.told(message.get("waiting", ()))
        elif message.get("say") == "break":
            ranks = tuple(int(rank) for rank in message.get("ranks", (peer,)))
            us = self._session.membership
            self._reported |= {ranks} if len(ranks) <= us.size and len(self._reported) < MOST_REPORTS else set()
            if message.get("how") in GONE:
                self._session.gone.update(set(ranks) & set(range(us.size)) - {us.rank})
            if self._session.failure is not None:
                return
            said = str(message.get("what"))
            what = said if " reports: " in said else f"rank {peer} reports: {said}"
            cause = f"see what rank {peer} reports" if message.get("kind") != "PeerLost" else None
            how = LossReason.REPORTED
            if message.get("how") == LossReason.CANCELLED:
                how, cause = LossReason.CANCELLED, CANCELLED_CAUSE
            elif us.rank in ranks:
                cause = "the others waited for this process: it was stopped, starved or cut off, or took no part"
            error = PeerLost(us.name, what, cause=cause, ranks=ranks, how=how, **us.where())
            # Told on: who hears of us first must not take our closing for the cause.
            if message.get("orderly") is True:
                self._session.end_in_order(error, {peer, *ranks})
            else:
                self._break({**message, "ranks": ranks, "what": what, "kind": "PeerLost"}, error)
