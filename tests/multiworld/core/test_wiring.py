"""Claims of other versions, ports that others have by now, and connections that are dropped unanswered."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch.distributed as dist

from multiworld import MultiWorld, RendezvousError
from multiworld.config import NetworkSettings
from multiworld.liveness.pulse import first_ping
from multiworld.process.hub import Hub
from multiworld.rendezvous.ledger import Claim, Ledger
from multiworld.rendezvous.renewal import Kept
from multiworld.rendezvous.wiring import HandshakeAcceptor, Incompatible, PeerDialler, Wiring, WiringFailed, alive, dial
from multiworld.transport.greeting import PROTOCOL, GreetingError, Hello, Reason, Role
from multiworld.transport.handshake import Acceptor

OURS = Claim("c0ffee", "127.0.0.1", 0, "elsewhere", 1, 1, "gloo")
#: as the first release wrote it
OLD_FIELDS = ("incarnation", "address", "port", "pulse", "machine", "pid", "started", "backend")
Answer = Callable[[socket.socket], None]


@contextlib.contextmanager
def listener(*answers: Answer) -> Iterator[Claim]:
    """A claim of somebody who treats the first connections in these ways, one by one, and then hears nobody."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            for answer in answers:
                with contextlib.suppress(OSError), listening.accept()[0] as sock:
                    sock.settimeout(5)
                    answer(sock)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield OURS._replace(port=listening.getsockname()[1])
        with contextlib.suppress(OSError):
            listening.shutdown(socket.SHUT_RDWR)
        thread.join(5)


def says(**fields: Any) -> Answer:
    def answer(sock: socket.socket) -> None:
        assert sock.makefile("rb").readline()
        sock.sendall(json.dumps(fields).encode() + b"\n")

    return answer


def hangs_up(sock: socket.socket) -> None:
    sock.recv(1)


def accepts(sock: socket.socket) -> None:
    acceptor = Acceptor(None)
    assert acceptor.take(sock.recv(4096)).hello
    sock.sendall(acceptor.accept())


def ledger_of(store: str) -> Ledger:
    return Ledger(dist.FileStore(store.removeprefix("file://"), -1), "w")


def write_claim(ledger: Ledger, rank: int, fields: dict[str, Any] | str) -> None:
    assert ledger.advance(0) == 1
    ledger.agree_size(1, 2)
    ledger._keys.put_first(f"1/rank/{rank}", fields if isinstance(fields, str) else json.dumps(fields))


def old(claim: Claim) -> dict[str, Any]:
    return {**{name: value for name, value in claim._asdict().items() if name in OLD_FIELDS}, "pulse": 1}


@pytest.mark.parametrize("rank", [0, 1], ids=["we dial", "they dial"])
def test_a_member_of_another_version_is_named_at_once(store: str, rank: int) -> None:
    with listener(says(ok=True), says(ok=True)) as claim, MultiWorld() as mw:
        write_claim(ledger_of(store), rank, old(claim))
        started = time.monotonic()
        with pytest.raises(RendezvousError) as caught:
            mw.sync.join("w", 1 - rank, 2, store=store, join_timeout=20)
        assert time.monotonic() - started < 10
        assert f"rank {rank} at 127.0.0.1:{claim.port} speaks protocol 1, this process {PROTOCOL}" in caught.value.what
        assert "install the same multiworld" in caught.value.remedy


def test_the_claim_of_a_dead_member_of_another_version_keeps_nobody_out(store: str) -> None:
    """After an upgrade the store may still hold what the last version wrote."""
    with listener() as claim:
        pass  # no process listens there any more
    with MultiWorld() as mw, MultiWorld() as other:
        write_claim(ledger_of(store), 1, old(claim))
        first = threading.Thread(target=mw.sync.join, args=("w", 0, 2), kwargs={"store": store}, daemon=True)
        first.start()
        assert other.sync.join("w", 1, 2, store=store).generation == 2
        first.join(20)


def test_a_claim_of_a_newer_version_can_be_read() -> None:
    newer = {**OURS._asdict(), "protocol": 3, "hat": {"colour": "red"}}
    del newer["machine"]
    assert Claim.unpacked(json.dumps(newer)) == OURS._replace(protocol=3, machine="")
    assert Claim.unpacked(json.dumps(old(OURS))) == OURS._replace(protocol=1)
    assert Claim.unpacked(OURS.packed()) == OURS


@pytest.mark.parametrize("rubbish", ["", "7", "[]", "[" * 100_000, "null", "\x00", '"x"'], ids=repr)
def test_rubbish_in_the_store_is_a_typed_error(rubbish: str) -> None:
    with pytest.raises(RendezvousError, match="that multiworld did not write"):
        Claim.unpacked(rubbish)


def test_rubbish_in_the_place_of_a_claim_ends_the_join(store: str) -> None:
    write_claim(ledger_of(store), 1, "rubbish")
    with MultiWorld() as mw, pytest.raises(RendezvousError, match="that multiworld did not write"):
        mw.sync.join("w", 0, 2, store=store, join_timeout=20)


def test_a_claimant_whose_port_somebody_else_has_by_now_is_gone() -> None:
    """Another job, with another secret or version, on the port of a dead member: it is not the member."""
    hub = Hub.acquire()
    try:
        endpoint = hub.endpoint("127.0.0.1", NetworkSettings(b"of another job"))
        there = OURS._replace(port=endpoint.port)
        for secret in (None, b"ours"):
            assert not alive("w", 1, 0, there, NetworkSettings(secret))
        acceptor = HandshakeAcceptor(endpoint, "w", 1, 0, 2, there.incarnation)
        for secret in (None, b"ours"):  # now that the member is there, it is the secret that is wrong
            with pytest.raises(Incompatible):
                alive("w", 1, 0, there, NetworkSettings(secret))
        assert acceptor.complaint() is not None
        assert alive("w", 1, 0, there, NetworkSettings(b"of another job"))
        acceptor.close()
        assert acceptor.complaint() is None
    finally:
        hub.release()
    with listener(says(ok=False, why="not that member")) as claim:  # of protocol 1
        assert not alive("w", 1, 0, claim, NetworkSettings())


def test_a_connection_that_is_dropped_unanswered_is_made_again() -> None:
    """The endpoint may have dropped it for those of a flood."""
    with listener(hangs_up, hangs_up, accepts) as claim:
        dial(claim, Hello(Role.LANE, "w", 1, 1, 0, "c0ffee"), NetworkSettings(), 5.0).close()
    with listener(hangs_up, hangs_up, hangs_up, accepts) as claim, pytest.raises((GreetingError, ConnectionError)):
        dial(claim, Hello(Role.LANE, "w", 1, 1, 0, "c0ffee"), NetworkSettings(), 5.0)


def test_connections_that_nobody_takes_are_closed_with_the_doorman() -> None:
    hub = Hub.acquire()
    try:
        endpoint = hub.endpoint("127.0.0.1", NetworkSettings())
        acceptor = HandshakeAcceptor(endpoint, "w", 1, 0, 3, "c0ffee")
        there = OURS._replace(port=endpoint.port)
        hellos = [Hello(role, "w", 1, peer, 0, "c0ffee") for peer in (1, 2) for role in (Role.LANE, Role.CONTROL)]
        socks = [dial(there, hello, NetworkSettings(), 5.0) for hello in hellos]
        for hello in hellos:
            with pytest.raises(GreetingError, match="already") as caught:
                dial(there, hello, NetworkSettings(), 5.0)
            assert caught.value.reason is Reason.REFUSED
        with pytest.raises(GreetingError):
            dial(there, replace(hellos[0], role=Role.STORE), NetworkSettings(), 5.0)
        acceptor.close()
        for sock in socks:
            with sock:
                sock.settimeout(5)
                assert sock.recv(1) == b""
    finally:
        hub.release()


def test_a_peer_has_one_heartbeat_connection() -> None:
    """A greeting that is sent again ends the connection before, so that nobody collects them."""
    hub = Hub.acquire()
    try:
        endpoint = hub.endpoint("127.0.0.1", NetworkSettings())
        acceptor = HandshakeAcceptor(endpoint, "w", 1, 0, 2, "c0ffee")
        there = OURS._replace(port=endpoint.port)
        hello = Hello(Role.PULSE, "w", 1, 1, 0, "c0ffee")
        first, second = (dial(there, hello, NetworkSettings(), 5.0) for _ in range(2))
        with first, second:
            assert first.recv(1) == b""
            first_ping(second)
        acceptor.close()
    finally:
        hub.release()


def test_a_step_of_a_peer_gets_all_the_time_that_is_left() -> None:
    """It got half of it: what was left then was compared with what had passed."""
    with MultiWorld() as mw:
        endpoint = mw._table.resources.hub.endpoint("127.0.0.1", NetworkSettings())
        acceptor = HandshakeAcceptor(endpoint, "w", 1, 0, 2, OURS.incarnation)
        deadline = time.monotonic() + 0.4
        rest = deadline, lambda: 5.0, lambda: False, lambda: False, lambda _: []
        wiring = Wiring(PeerDialler("w", 1, 0, (OURS, OURS), (0, 1), NetworkSettings()), acceptor, *rest)
        steps = wiring.connect(Kept().among(()))

        def walk() -> None:
            for pause in steps:
                time.sleep(pause.seconds)

        with pytest.raises(WiringFailed, match="did not connect in time"):
            walk()
        assert time.monotonic() >= deadline
        acceptor.close()
