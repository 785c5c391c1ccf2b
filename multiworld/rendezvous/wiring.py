"""The connections between the members of one generation: two to each peer, one for data, one for control.

The higher rank dials the lower. Both say who they are; a wrong world, generation, rank or incarnation is refused,
with the reason. When a member has all its connections it says so on each, and is in when everybody has.
"""

from __future__ import annotations

import contextlib
import queue
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from multiworld.config import NetworkSettings, printed
from multiworld.net.greeting import GreetingError, Hello, Reason, Role, greet
from multiworld.rendezvous.ledger import Claim

if TYPE_CHECKING:
    from multiworld.net.endpoint import Endpoint, Taker

#: the connections between two members
ROLES = (Role.LANE, Role.CONTROL)
READY = b"R"
#: how often a connection is made anew that was closed without a word: a flood of others may have pushed it out
DIAL_TRIES = 3


class WiringFailed(Exception):
    """A peer could not be reached, refused us, or went away meanwhile; ``peer`` is its rank."""

    def __init__(self, peer: int, why: str) -> None:
        super().__init__(f"rank {peer}: {why}")
        self.peer = peer
        self.why = why


class Incompatible(Exception):
    """A peer has another secret or speaks another protocol: no further try can succeed.

    Args:
        peer: its rank.
        claim: how it was to be reached.
        error: what it said.
    """

    def __init__(self, peer: int, claim: Claim, error: GreetingError) -> None:
        super().__init__(f"rank {peer} at {printed(claim.address, claim.port)} {error.what}")
        self.error = error


@dataclass(frozen=True, slots=True)
class Wires:
    """The connections, by world rank."""

    lanes: dict[int, socket.socket]
    controls: dict[int, socket.socket]

    def close(self) -> None:
        """Close all."""
        for sock in (*self.lanes.values(), *self.controls.values()):
            sock.close()


class Doorman:
    """Answers visitors for one world and generation: peers that dial us, and probes that ask whether we live.

    Args:
        endpoint: where they come to.
        world: its name.
        generation: its generation.
        rank: ours.
        size: number of members.
        incarnation: of our claim.
        withdrawn: True once we do not want to be that member any more: a cancelled join gives its rank back at once.
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
    ) -> None:
        self.arrived: queue.SimpleQueue[tuple[int, Role, socket.socket]] = queue.SimpleQueue()
        self._endpoint = endpoint
        self._where = world, generation, incarnation
        self._me = rank, incarnation
        self._withdrawn = withdrawn
        #: who has yet to dial us, and for what: each does so once, and only higher ranks do
        self._missing = {(peer, role) for peer in range(rank + 1, size) for role in ROLES}
        self._guard = threading.Lock()
        self._closed = False
        endpoint.expect(*self._where, self._answer)

    def close(self) -> None:
        """Answer nobody any more."""
        self._endpoint.forget(*self._where)
        with self._guard:
            self._closed = True
        with contextlib.suppress(queue.Empty):
            while True:
                self.arrived.get_nowait()[2].close()

    def complaint(self) -> GreetingError | None:
        """Why somebody who dialled us was turned away, if that may be a member with other settings."""
        return self._endpoint.complaint(*self._where)

    def _answer(self, hello: Hello) -> Taker | str:
        if (hello.to, hello.incarnation) != self._me or self._withdrawn():
            return "this process is not that member"
        if hello.role is Role.PROBE:
            return socket.socket.close
        if hello.role not in ROLES or not self._me[0] < hello.sender:
            return f"no {hello.role.value} of rank {hello.sender} is expected here"
        if (hello.sender, hello.role) not in self._missing:
            return f"the {hello.role.value} of rank {hello.sender} is here already, or there is no such rank"
        return lambda sock: self._arrive(hello.sender, hello.role, sock)

    def _arrive(self, peer: int, role: Role, sock: socket.socket) -> None:
        with self._guard:
            self._missing.discard((peer, role))
            if not self._closed:
                self.arrived.put((peer, role, sock))
                return
        sock.close()  # we were given up while it was answered


def dial(claim: Claim, hello: Hello, network: NetworkSettings, timeout: float) -> socket.socket:
    """Connect to a member and greet it; the connection, once it has said yes.

    Args:
        claim: where it is.
        hello: who we are and what we want.
        network: with our secret.
        timeout: seconds for all of it.

    Raises:
        GreetingError: it said no, or is no member.
        OSError: not reachable, or no answer in time.
    """
    until = time.monotonic() + timeout
    for _ in range(DIAL_TRIES - 1):
        try:
            return _dial_once(claim, hello, network, until)
        except GreetingError as error:  # noqa: PERF203 - that it fails is why there is a loop
            if error.reason is not Reason.HUNG_UP:
                raise
        except (ConnectionResetError, BrokenPipeError):
            pass
    return _dial_once(claim, hello, network, until)


def _dial_once(claim: Claim, hello: Hello, network: NetworkSettings, until: float) -> socket.socket:
    sock = socket.create_connection((claim.address, claim.port), timeout=max(0.001, until - time.monotonic()))
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        greet(sock, hello, network, until - time.monotonic())
    except BaseException:
        sock.close()
        raise
    return sock


def alive(world: str, generation: int, rank: int, claim: Claim, network: NetworkSettings, timeout: float = 1.0) -> bool:
    """Whether the process that made ``claim`` is still a member, or on the way to be one.

    Args:
        world: name of the world.
        generation: of the claim.
        rank: that it claims.
        claim: as it is in the store.
        network: with our secret.
        timeout: seconds until it counts as gone.

    Raises:
        Incompatible: it is, with another secret or protocol.
    """
    hello = Hello(Role.PROBE, world, generation, to=rank, incarnation=claim.incarnation)
    try:
        dial(claim, hello, network, timeout).close()
    except GreetingError as error:
        if error.lasting:
            raise Incompatible(rank, claim, error) from None
        return False
    except OSError:
        return False
    return True


def wire(
    world: str,
    generation: int,
    rank: int,
    claims: Mapping[int, Claim],
    doorman: Doorman,
    network: NetworkSettings,
    deadline: float,
    cancelled: Callable[[], bool],
) -> Wires:
    """Make all connections of ``rank``.

    Args:
        world: its name.
        generation: its generation.
        rank: ours.
        claims: of all members, by rank.
        doorman: who answers those that dial us.
        network: with our secret.
        deadline: monotonic time.
        cancelled: asked now and then; True gives up, because nobody wants it any more or the others have moved on.

    Raises:
        WiringFailed: with the rank of the peer that is missing.
        Incompatible: a peer has another secret or protocol.
    """
    wires = Wires({}, {})
    try:
        for peer in range(rank):
            for role in ROLES:
                hello = Hello(role, world, generation, rank, peer, claims[peer].incarnation)
                _put(wires, peer, role, _dialled(peer, claims[peer], hello, network, deadline))
        _await_arrivals(wires, rank, len(claims), doorman, deadline, cancelled)
        _all_ready(wires, deadline)
    except BaseException:
        wires.close()
        raise
    return wires


def _dialled(peer: int, claim: Claim, hello: Hello, network: NetworkSettings, deadline: float) -> socket.socket:
    try:
        return dial(claim, hello, network, max(0.1, min(5.0, deadline - time.monotonic())))
    except socket.gaierror as error:
        why = f"{claim.address!r} is no address here" + (": its interface is another one's" * ("%" in claim.address))
        raise WiringFailed(peer, why) from error
    except OSError as error:
        if isinstance(error, GreetingError) and error.lasting:
            raise Incompatible(peer, claim, error) from None
        raise WiringFailed(peer, str(error)) from error


def _await_arrivals(
    wires: Wires, rank: int, size: int, doorman: Doorman, deadline: float, cancelled: Callable[[], bool]
) -> None:
    missing = {(peer, role) for peer in range(rank + 1, size) for role in ROLES}
    patience = min(deadline, time.monotonic() + 5.0)
    while missing:
        if cancelled() or time.monotonic() > patience:
            raise WiringFailed(min(peer for peer, _ in missing), "did not connect in time")
        with contextlib.suppress(queue.Empty):
            peer, role, sock = doorman.arrived.get(timeout=0.05)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _put(wires, peer, role, sock)
            missing.discard((peer, role))


def _put(wires: Wires, peer: int, role: Role, sock: socket.socket) -> None:
    table = wires.lanes if role is Role.LANE else wires.controls
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
