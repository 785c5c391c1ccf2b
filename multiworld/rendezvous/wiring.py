"""The connections between the members of one generation: two to each peer, one for data, one for control.

A member greets by its place: its rank, or its place in a list of candidates of which not all came. The higher one dials
the lower. Both say who they are; a wrong world, generation, rank or incarnation is refused, with the reason. Where both
have kept their connections of the last generation, they go on with these, see ``renewal``. Then each member dials those
that it is going to ping, unless another world has done so already. When a member has all its connections it says so to
the lowest one. It is in once that one tells it that all have them: from then on a sign of life does not need the Python
of a peer.
"""

from __future__ import annotations

import contextlib
import queue
import re
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from multiworld.config import NetworkSettings, printed
from multiworld.liveness.monitor import watched_by
from multiworld.liveness.neighbour import Presence, share_network
from multiworld.liveness.pulse import first_ping
from multiworld.process.join_threads import Pause, Steps
from multiworld.rendezvous.ledger import Claim
from multiworld.rendezvous.renewal import HeldLanes, mark_of
from multiworld.transport.descriptors import descriptor_shortage
from multiworld.transport.endpoint import Endpoint, Taker
from multiworld.transport.greeting import GreetingError, Hello, Reason, Role, refusal
from multiworld.transport.handshake import greet
from multiworld.transport.lines import Lines
from multiworld.transport.sockets import connected, connected_here

#: the connections between two members
ROLES = (Role.LANE, Role.CONTROL)
READY = b"R"
#: how often to dial when the peer hangs up without an answer: a flood of others may have pushed us out
DIAL_TRIES = 3
#: seconds between two looks at what has come, which wakes us
ARRIVAL_PAUSE = 0.05
#: how long a claimant may take to answer until it counts as gone
ALIVE_SECONDS = 1.0
#: what a step of a peer gets in any case, in seconds
SHORTEST_STEP = 0.1
#: names of listeners for processes of the same host, as an endpoint makes them: nothing else is ever connected to
LOCAL_NAME = re.compile("[0-9a-f]{32}")


class WiringFailed(Exception):
    """A peer could not be reached, refused us, or went away; ``peer`` is its rank."""

    def __init__(self, peer: int, why: str) -> None:
        super().__init__(f"rank {peer}: {why}")
        self.peer = peer
        self.why = why


class Incompatible(Exception):
    """A peer has another secret or speaks another protocol: another try cannot succeed."""

    def __init__(self, peer: int, claim: Claim, error: GreetingError) -> None:
        super().__init__(f"rank {peer} at {printed(claim.address, claim.port)} {error.what}")
        self.error = error


@dataclass(frozen=True, slots=True)
class Wires:
    """The connections, by rank: ``lanes`` that are new, and those that are ``held``; these were in use
    before, and have a ``mark``. ``pulses`` lead to the peers that we ping and that no other world of ours pings;
    ``dial_pulse`` makes another of these within some seconds."""

    lanes: dict[int, socket.socket]
    held: HeldLanes
    lines: Lines
    mark: bytes
    pulses: dict[int, socket.socket]
    dial_pulse: Callable[[int, float], socket.socket]

    def put(self, peer: int, role: Role, sock: socket.socket) -> None:
        with _blaming(peer):
            if role is Role.LANE:
                self.lanes[peer] = sock
            else:
                self.lines.put(peer, sock)

    def lead_to(self) -> set[int]:
        """The ranks to which both lead."""
        return (self.lanes.keys() | self.held.descriptors) & self.lines.socks.keys()

    def close(self) -> None:
        for sock in (*self.lanes.values(), *self.pulses.values()):
            sock.close()
        self.held.close()
        self.lines.close()


class HandshakeAcceptor:
    """Answers visitors for one world and generation: peers that dial us, and probes that ask whether we live.

    It refuses all once ``withdrawn`` says so: a cancelled join frees its rank at once. ``on_arrival`` is called in the
    hub's thread.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        world: str,
        generation: int,
        rank: int,
        size: int,
        incarnation: str,
        withdrawn: Callable[[], bool] = lambda: False,
        on_arrival: Callable[[], None] = lambda: None,
    ) -> None:
        self.arrived: queue.SimpleQueue[tuple[int, Role, socket.socket]] = queue.SimpleQueue()
        self.endpoint = endpoint
        self._where = world, generation, incarnation
        self._me = rank
        #: takes over the connection of a newcomer, in the hub's thread
        self.knock: Taker | None = None
        self._size = size
        self._withdrawn = withdrawn
        self._on_arrival = on_arrival
        #: the peers that have dialled us, and for what: only higher ranks dial, once for each role; None: all are here
        self._here: set[tuple[int, Role]] | None = set()
        self._pulses: dict[int, socket.socket] = {}
        self._guard = threading.Lock()
        endpoint.expect(*self._where, self._answer)

    def close(self) -> None:
        self.endpoint.forget(*self._where)
        self.complete()

    def complete(self) -> None:
        """Let nobody dial us any more for a lane or control connection: all that are needed are here."""
        with self._guard:
            self._here = None
        with contextlib.suppress(queue.Empty):
            while True:
                self.arrived.get_nowait()[2].close()

    def await_word(self, lines: Lines) -> None:
        """Call ``on_arrival`` once something has come on ``lines``."""

        def arrived() -> None:
            lines.rest()
            self._on_arrival()

        lines.watch(self.endpoint.hub, arrived)

    def complaint(self) -> GreetingError | None:
        """Why a peer that dialled us was refused, if it may be a member with other settings."""
        return self.endpoint.complaint(*self._where)

    def _answer(self, hello: Hello) -> Taker | str:
        if self._withdrawn():
            return "this process is not that member"
        if hello.role is Role.PROBE:
            return socket.socket.close
        if hello.role is Role.SIZE:
            what = f"joins as rank {hello.sender} of {hello.to}, not of {self._size}"
            raise GreetingError(Reason.SIZE, what, refusal(Reason.SIZE, "has another size"), hello)
        if hello.role is Role.DOOR:
            return self.knock or "no newcomer is taken in here"
        if hello.to != self._me:
            return "this process is not that member"
        if not (0 <= hello.sender < self._size and hello.sender != self._me):
            return f"rank {hello.sender} is not a peer in a world of {self._size}"
        if hello.role in ROLES:
            return self._answer_to_wire(hello)
        if hello.role is Role.PULSE:
            return lambda sock: self._serve_pulse(hello.sender, sock)
        return f"a connection for {hello.role.value} is not taken here"

    def _answer_to_wire(self, hello: Hello) -> Taker | str:
        if hello.sender < self._me:
            return f"rank {hello.sender} is lower and does not dial, it is dialled"
        if self._here is None or (hello.sender, hello.role) in self._here:
            return f"the {hello.role.value} of rank {hello.sender} is here already"
        return lambda sock: self._arrive(hello.sender, hello.role, sock)

    def _serve_pulse(self, peer: int, sock: socket.socket) -> None:
        """Hand a heartbeat connection over; the last one of that peer ends, so that greetings cannot collect them."""
        last = self._pulses.get(peer)
        if last is not None:
            with contextlib.suppress(OSError):
                last.shutdown(socket.SHUT_RDWR)
        self._pulses[peer] = sock
        self.endpoint.serve_pulse(sock)

    def _arrive(self, peer: int, role: Role, sock: socket.socket) -> None:
        with self._guard:
            if self._here is not None and (peer, role) not in self._here:
                self._here.add((peer, role))
                self.arrived.put((peer, role, sock))
                self._on_arrival()
                return
        sock.close()  # it came meanwhile, or we need none any more


def dial(claim: Claim, hello: Hello, network: NetworkSettings, timeout: float, *, near: bool = False) -> socket.socket:
    """Connect to a member and greet it; the connection, once it has said yes.

    Args:
        near: whether it need not be TCP, as the member seems to be on this host.

    Raises:
        GreetingError: it says no, or is no member.
        OSError: it is not reachable, or does not answer in time.
    """
    until = time.monotonic() + timeout
    for _ in range(DIAL_TRIES - 1):
        try:
            return _dial_once(claim, hello, network, until, near)
        except GreetingError as error:  # noqa: PERF203 - that it fails is why there is a loop
            if error.reason is not Reason.HUNG_UP:
                raise
        except (ConnectionResetError, BrokenPipeError):
            pass
    return _dial_once(claim, hello, network, until, near)


def _dial_once(claim: Claim, hello: Hello, network: NetworkSettings, until: float, near: bool) -> socket.socket:
    seconds = max(0.001, until - time.monotonic())
    sock = (_connected_here(claim, seconds) if near else None) or connected(claim.address, claim.port, seconds)
    try:
        _send_at_once(sock)
        greet(sock, hello, network, until - time.monotonic())
    except BaseException:
        sock.close()
        raise
    return sock


def _connected_here(claim: Claim, seconds: float) -> socket.socket | None:
    """Connect without TCP. None if the member is on another host, or in a container that only looks as if it were on
    this one: a name that nobody has here is refused at once."""
    if LOCAL_NAME.fullmatch(claim.local):
        with contextlib.suppress(OSError):
            return connected_here(claim.local, seconds)
    return None


def _send_at_once(sock: socket.socket) -> None:
    if sock.family != socket.AF_UNIX:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


def alive(world: str, generation: int, rank: int, claim: Claim, network: NetworkSettings) -> bool:
    """Return whether the process that made ``claim`` is still a member, or on the way to be one.

    Raises:
        Incompatible: it is, with another secret or protocol.
    """
    hello = Hello(Role.PROBE, world, generation, to=rank, incarnation=claim.incarnation)
    try:
        dial(claim, hello, network, ALIVE_SECONDS).close()
    except GreetingError as error:
        if error.lasting:
            raise Incompatible(rank, claim, error) from None
        return False
    except OSError as error:
        return descriptor_shortage(error) is not None  # we could not ask
    return True


def presence(claim: Claim, ask: bool, *, world: str, network: NetworkSettings) -> Presence:
    """Tell what is seen of a member, of whatever generation: its process is looked at where that can be done. It is
    asked otherwise, or if ``ask``: a process may run and have left the world."""
    known = claim.process.presence()
    if known is not None and (known is not Presence.HERE or not ask):
        return known
    try:
        dial(claim, Hello(Role.PROBE, world, incarnation=claim.identity), network, ALIVE_SECONDS).close()
    except ConnectionRefusedError:
        return Presence.GONE
    except GreetingError as error:
        return Presence.GONE if error.reason is Reason.REFUSED else Presence.HERE
    except OSError as error:  # a process that runs may be too busy to answer
        return Presence.STILL if known is None and descriptor_shortage(error) is None else Presence.HERE
    return Presence.HERE


def answer_presence(hello: Hello) -> Taker | str:
    """Answer who asks with ``presence``, as long as the member has not left."""
    return socket.socket.close if hello.role is Role.PROBE else "a member is reached by its incarnation"


@dataclass(frozen=True, slots=True)
class PeerDialler:
    """Makes connections of one member to the others. It lives as long as the session, and keeps nothing of the join.

    Attributes:
        claims: of all members, by rank; so are their ``places``.
        near: whether our lanes may be other than TCP.
    """

    world: str
    generation: int
    rank: int
    claims: Sequence[Claim]
    places: Sequence[int]
    network: NetworkSettings
    near: bool = False

    def dial(self, role: Role, peer: int, timeout: float) -> socket.socket:
        claim = self.claims[peer]
        hello = Hello(role, self.world, self.generation, self.places[self.rank], self.places[peer], claim.incarnation)
        near = self.near and role is Role.LANE and share_network(self.claims[self.rank].machine, claim.machine)
        return dial(claim, hello, self.network, timeout, near=near)

    def pulse(self, peer: int, timeout: float) -> socket.socket:
        """Connect to the responder of ``peer`` and wait for one answer; raises ``OSError``. Each step has ``timeout``
        seconds."""
        sock = self.dial(Role.PULSE, peer, timeout)
        try:
            first_ping(sock)
        except BaseException:
            sock.close()
            raise
        return sock


@dataclass(frozen=True, slots=True)
class Wiring:
    """Makes all connections of one member to the others.

    Attributes:
        acceptor: has those who dial us.
        deadline: of all of it, a monotonic time; a step of a peer may take ``patience()`` seconds.
        cancelled: asked now and then; True gives up. So does ``over``, which the lowest member asks before it tells
            that all are ready, as it may have slept meanwhile.
        unconnected: picks those claims whose process no heartbeat connection leads to yet.
    """

    dialler: PeerDialler
    acceptor: HandshakeAcceptor
    deadline: float
    patience: Callable[[], float]
    cancelled: Callable[[], bool]
    over: Callable[[], bool]
    unconnected: Callable[[Iterable[Claim]], list[Claim]]

    def connect(self, kept: tuple[HeldLanes, Lines]) -> Steps[Wires]:
        """Make all connections but for those that were ``kept``.

        Raises:
            WiringFailed: with the rank of the peer that is missing, or since ``cancelled`` or ``over`` said True.
            Incompatible: a peer has another secret or protocol.
        """
        # The mark is that of this generation, from which on connections are used that both sides have kept.
        us = self.dialler
        mark = mark_of(us.claims[0], f"{us.world} {us.generation}", us.network.secret)
        wires = Wires({}, *kept, mark, {}, us.pulse)
        try:
            wires.lines.begin_at(wires.mark)
            for peer in sorted({*range(us.rank)} - wires.lead_to()):
                for role in ROLES:
                    wires.put(peer, role, self._dial_peer(peer, role))
            yield from self._await_others(wires)
            self._dial_pulses(wires)
            yield from self._all_ready(wires.lines)
        except BaseException:
            wires.close()
            raise
        return wires

    def _left(self, since: float) -> float:
        """Seconds that are left for a step which began at ``since``."""
        return max(since + SHORTEST_STEP, min(since + self.patience(), self.deadline)) - time.monotonic()

    def _dial_peer(self, peer: int, role: Role) -> socket.socket:
        """Connect to ``peer`` for ``role``; raises as ``connect`` if it cannot be reached or refuses."""
        claim = self.dialler.claims[peer]
        try:
            return self.dialler.dial(role, peer, self._left(time.monotonic()))
        except socket.gaierror as error:
            why = f"{claim.address!r} is not known on this machine"
            if "%" in claim.address:
                why += ": this machine has no interface of that name, and a link-local address needs one"
            raise WiringFailed(peer, why) from error
        except OSError as error:
            if isinstance(error, GreetingError) and error.lasting:
                raise Incompatible(peer, claim, error) from None
            raise WiringFailed(peer, str(error)) from error

    def _await_others(self, wires: Wires) -> Steps[None]:
        """Wait for those who dial us."""
        since, others = time.monotonic(), {*range(len(self.dialler.claims))} - {self.dialler.rank}
        while True:
            with contextlib.suppress(queue.Empty):
                while True:
                    place, role, sock = self.acceptor.arrived.get_nowait()
                    if place not in self.dialler.places:  # a candidate that is not in
                        sock.close()
                        continue
                    _send_at_once(sock)
                    wires.put(self.dialler.places.index(place), role, sock)
            missing = others - wires.lead_to()
            if not missing:
                break
            if self.cancelled() or self._left(since) < 0:
                raise WiringFailed(min(missing), "did not connect in time")
            yield Pause(ARRIVAL_PAUSE, urgent=True)
        self.acceptor.complete()

    def _dial_pulses(self, wires: Wires) -> None:
        """Connect to the peers that we watch first."""
        us, claims = self.dialler, self.dialler.claims
        ring = {claims[rank].incarnation: rank for rank in watched_by(us.rank, len(claims), (), ())}
        for claim in self.unconnected(claims[peer] for peer in ring.values()):
            peer = ring[claim.incarnation]
            with _blaming(peer):
                wires.pulses[peer] = us.pulse(peer, self._left(time.monotonic()))

    def _all_ready(self, lines: Lines) -> Steps[None]:
        """Wait until all members are ready: the lowest one hears it from each, and then tells them."""
        others, rank = set(lines.socks), self.dialler.rank
        if self.cancelled():  # with connections that were kept, nothing has been waited for
            raise WiringFailed(min(others, default=rank), "it was given up here, or the others have gone on")
        _say(lines, {0} if rank else ())
        yield from self._hear(lines, {0} if rank else set(others))
        if not rank and self.over():
            raise WiringFailed(min(others, default=rank), "the others have gone on")
        _say(lines, () if rank else others)

    def _hear(self, lines: Lines, awaited: set[int]) -> Steps[None]:
        """Wait until the ``awaited`` peers say that they are ready too."""
        since = time.monotonic()
        while awaited:
            heard = {peer for peer in awaited & lines.ready() if _said(lines, peer)}
            awaited -= heard
            if heard:
                since = time.monotonic()
                continue
            if self.cancelled() or self._left(since) < 0:
                raise WiringFailed(min(awaited), "timed out")
            if not lines.ready():  # else one who is in already has said more, which nobody takes yet
                self.acceptor.await_word(lines)
            yield Pause(ARRIVAL_PAUSE, urgent=True)


def _say(lines: Lines, peers: Iterable[int]) -> None:
    """Say that we are ready."""
    for peer in peers:
        with _blaming(peer):
            lines.send(peer, READY)


def _said(lines: Lines, peer: int) -> bool:
    """Tell whether the peer has said that it is ready."""
    with _blaming(peer), contextlib.suppress(BlockingIOError):
        if lines.recv(peer, 1) != READY:
            raise ConnectionResetError("went away while joining")
        return True
    return False


@contextlib.contextmanager
def _blaming(peer: int) -> Any:
    try:
        yield
    except OSError as error:
        raise WiringFailed(peer, str(error)) from error
