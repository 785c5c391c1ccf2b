"""The connections between the members of one generation: two to each peer, one for data, one for control.

The higher rank dials the lower. Both say who they are; a wrong world, generation, rank or incarnation is refused,
with the reason. Then each member dials those that it is going to ping, unless another world has done so already. When a
member has all its connections it says so on each, and is in when everybody has: from then on nobody needs the Python of
another one for a sign of life.
"""

from __future__ import annotations

import contextlib
import json
import queue
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from multiworld.liveness.pulse import first_ping
from multiworld.liveness.ring import watched_by
from multiworld.rendezvous.ledger import Claim

if TYPE_CHECKING:
    from multiworld.net.endpoint import Endpoint, Taker

ROLES = ("lane", "control")
#: of a connection that is handed to the native responder; shared by all worlds of two processes
PULSE = "pulse"
READY = b"R"


class WiringFailed(Exception):
    """A peer could not be reached, refused us, or went away meanwhile; ``peer`` is its rank."""

    def __init__(self, peer: int, why: str) -> None:
        super().__init__(f"rank {peer}: {why}")
        self.peer = peer
        self.why = why


@dataclass(frozen=True, slots=True)
class DialPulse:
    """Makes heartbeat connections of one member.

    Attributes:
        world: its name.
        generation: its generation.
        rank: ours.
        claims: of all members, by rank.
    """

    world: str
    generation: int
    rank: int
    claims: Mapping[int, Claim]

    def __call__(self, peer: int, timeout: float) -> socket.socket:
        """Connect to the responder of ``peer`` and see that it answers.

        Raises:
            OSError: it cannot be reached, refuses, or does not answer, each step within ``timeout`` seconds.
        """
        hello = _hello(self.world, self.generation, self.rank, peer, PULSE, self.claims)
        sock = dial(self.claims[peer], hello, timeout)
        try:
            first_ping(sock)
        except BaseException:
            sock.close()
            raise
        return sock


@dataclass(frozen=True, slots=True)
class Wires:
    """The connections, by world rank.

    Attributes:
        lanes: for data.
        controls: for control.
        pulses: for heartbeats, to those that we ping and that no other world of ours pings.
        dial_pulse: makes another of these.
    """

    lanes: dict[int, socket.socket]
    controls: dict[int, socket.socket]
    pulses: dict[int, socket.socket]
    dial_pulse: DialPulse

    def close(self) -> None:
        """Close all."""
        for sock in (*self.lanes.values(), *self.controls.values(), *self.pulses.values()):
            sock.close()


class Doorman:
    """Answers visitors for one world and generation: peers that dial us, and probes that ask whether we live.

    Args:
        endpoint: where they come to.
        world: its name.
        generation: its generation.
        rank: ours.
        incarnation: of our claim.
        withdrawn: True once we do not want to be that member any more: a cancelled join gives its rank back at once.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        world: str,
        generation: int,
        rank: int,
        incarnation: str,
        withdrawn: Callable[[], bool] = lambda: False,
    ) -> None:
        self.arrived: queue.SimpleQueue[tuple[int, str, socket.socket]] = queue.SimpleQueue()
        self._endpoint = endpoint
        self._where = world, generation, incarnation
        self._me = rank, incarnation
        self._withdrawn = withdrawn
        endpoint.expect(*self._where, self._answer)

    def close(self) -> None:
        """Answer nobody any more."""
        self._endpoint.forget(*self._where)
        with contextlib.suppress(queue.Empty):
            while True:
                self.arrived.get_nowait()[2].close()

    def _answer(self, hello: dict[str, Any]) -> tuple[dict[str, Any], Taker | None]:
        if (hello.get("to"), hello.get("incarnation")) != self._me or self._withdrawn():
            return {"ok": False, "why": "this process is not that member"}, None
        role, peer = hello.get("role"), hello.get("from")
        if role == PULSE:
            return {"ok": True}, self._endpoint.pulse.adopt
        if role not in ROLES or not isinstance(peer, int):
            return {"ok": role == "probe"}, None
        return {"ok": True}, lambda sock: self.arrived.put((peer, role, sock))


def dial(claim: Claim, hello: Mapping[str, Any], timeout: float) -> socket.socket:
    """Connect to a member and say hello; the connection, once it has said yes.

    Raises:
        OSError: not reachable, or no answer within ``timeout`` seconds.
        PermissionError: it said no; the text is its reason.
    """
    sock = socket.create_connection((claim.address, claim.port), timeout=timeout)
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.sendall(json.dumps(dict(hello)).encode() + b"\n")
        reply = json.loads(_line(sock))
        if not reply.get("ok"):
            raise PermissionError(reply.get("why", "refused"))  # noqa: TRY301 - the socket is closed below
    except ValueError as error:
        sock.close()
        raise ConnectionAbortedError("answered with something else than a reply") from error
    except BaseException:
        sock.close()
        raise
    return sock


def alive(world: str, generation: int, rank: int, claim: Claim, timeout: float = 1.0) -> bool:
    """Whether the process that made ``claim`` is still a member, or on the way to be one."""
    hello = {"world": world, "generation": generation, "role": "probe", "to": rank, "incarnation": claim.incarnation}
    try:
        dial(claim, hello, timeout).close()
    except OSError:
        return False
    return True


def wire(
    world: str,
    generation: int,
    rank: int,
    claims: Mapping[int, Claim],
    doorman: Doorman,
    deadline: float,
    cancelled: Callable[[], bool],
    unconnected: Callable[[Iterable[Claim]], list[Claim]],
) -> Wires:
    """Make all connections of ``rank``.

    Args:
        world: its name.
        generation: its generation.
        rank: ours.
        claims: of all members, by rank.
        doorman: who answers those that dial us.
        deadline: monotonic time.
        cancelled: asked now and then; True gives up, because nobody wants it any more or the others have moved on.
        unconnected: picks those claims whose process no heartbeat connection leads to yet.

    Raises:
        WiringFailed: with the rank of the peer that is missing.
    """
    wires = Wires({}, {}, {}, DialPulse(world, generation, rank, claims))
    try:
        for peer in range(rank):
            for role in ROLES:
                hello = _hello(world, generation, rank, peer, role, claims)
                _put(wires, peer, role, _dialled(peer, claims[peer], hello, deadline))
        _await_arrivals(wires, rank, len(claims), doorman, deadline, cancelled)
        _dial_pulses(wires, rank, claims, deadline, unconnected)
        _all_ready(wires, deadline)
    except BaseException:
        wires.close()
        raise
    return wires


def _hello(world: str, generation: int, rank: int, peer: int, role: str, claims: Mapping[int, Claim]) -> dict[str, Any]:
    return {
        "world": world, "generation": generation, "role": role,
        "from": rank, "to": peer, "incarnation": claims[peer].incarnation,
    }  # fmt: skip


def _dial_pulses(
    wires: Wires,
    rank: int,
    claims: Mapping[int, Claim],
    deadline: float,
    unconnected: Callable[[Iterable[Claim]], list[Claim]],
) -> None:
    """Connect to those whom we are going to watch first."""
    ring = {claims[peer].incarnation: peer for peer in watched_by(rank, len(claims), (), ())}
    for claim in unconnected(claims[peer] for peer in ring.values()):
        peer = ring[claim.incarnation]
        with _blaming(peer):
            wires.pulses[peer] = wires.dial_pulse(peer, max(0.1, min(5.0, deadline - time.monotonic())))


def _dialled(peer: int, claim: Claim, hello: dict[str, Any], deadline: float) -> socket.socket:
    try:
        return dial(claim, hello, max(0.1, min(5.0, deadline - time.monotonic())))
    except OSError as error:
        raise WiringFailed(peer, str(error)) from error


def _await_arrivals(
    wires: Wires, rank: int, size: int, doorman: Doorman, deadline: float, cancelled: Callable[[], bool]
) -> None:
    missing = {(peer, role) for peer in range(rank + 1, size) for role in ROLES}
    patience = min(deadline, time.monotonic() + 5.0)
    while missing:
        if cancelled() or time.monotonic() > patience:
            raise WiringFailed(min(missing)[0], "did not connect in time")
        with contextlib.suppress(queue.Empty):
            peer, role, sock = doorman.arrived.get(timeout=0.05)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _put(wires, peer, role, sock)
            missing.discard((peer, role))


def _put(wires: Wires, peer: int, role: str, sock: socket.socket) -> None:
    table = wires.lanes if role == "lane" else wires.controls
    if peer in table:
        table[peer].close()
    table[peer] = sock


def _all_ready(wires: Wires, deadline: float) -> None:
    for peer, control in wires.controls.items():
        with _blaming(peer):
            control.settimeout(5.0)
            control.sendall(READY)
    for peer, control in wires.controls.items():
        with _blaming(peer):
            control.settimeout(max(0.1, min(5.0, deadline - time.monotonic())))
            if control.recv(1) != READY:
                raise ConnectionResetError("went away while joining")


@contextlib.contextmanager
def _blaming(peer: int) -> Any:
    try:
        yield
    except OSError as error:
        raise WiringFailed(peer, str(error)) from error


def _line(sock: socket.socket) -> bytes:
    said = b""
    while not said.endswith(b"\n"):
        byte = sock.recv(1)  # nothing of what follows may be read
        if not byte:
            raise ConnectionResetError("hung up")
        said += byte
    return said
