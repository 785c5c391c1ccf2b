"""The endpoint's limits, one by one, with sockets of the test's own."""

from __future__ import annotations

import contextlib
import json
import logging
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from multiworld.config import NetworkSettings
from multiworld.process.hub import Hub
from multiworld.transport.endpoint import MAX_VISITORS, VISITOR_SECONDS, Endpoint
from multiworld.transport.greeting import MAX_GREETING_BYTES, PROTOCOL, Hello, Role
from multiworld.transport.handshake import Dialler

HELLO = Hello(Role.PROBE, "w", 1, to=0, incarnation="c0ffee")
SECRET = b"nobody-may-read-this"


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    hub = Hub.acquire()
    yield hub.endpoint("127.0.0.1", NetworkSettings())
    hub.release()


@pytest.fixture
def guarded() -> Iterator[Endpoint]:
    """One with a secret, and a member that answers."""
    hub = Hub.acquire()
    made = hub.endpoint("127.0.0.1", NetworkSettings(SECRET))
    made.expect("w", 1, "c0ffee", lambda _: socket.socket.close)
    yield made
    hub.release()


def connect(endpoint: Endpoint) -> socket.socket:
    return socket.create_connection(("127.0.0.1", endpoint.port), timeout=VISITOR_SECONDS + 5)


def answer(endpoint: Endpoint, said: bytes) -> bytes:
    """Read until the end."""
    with connect(endpoint) as sock, sock.makefile("rb") as replies:
        sock.sendall(said)
        with contextlib.suppress(ConnectionResetError):
            return replies.read()
    return b""


def test_who_says_nothing_has_two_seconds(endpoint: Endpoint) -> None:
    with connect(endpoint) as sock:
        started = time.monotonic()
        assert sock.recv(1) == b""
        assert VISITOR_SECONDS - 0.2 < time.monotonic() - started < VISITOR_SECONDS + 3


def test_who_drips_has_two_seconds(endpoint: Endpoint) -> None:
    started = time.monotonic()
    with connect(endpoint) as sock, contextlib.suppress(OSError):
        while time.monotonic() - started < VISITOR_SECONDS + 5:
            sock.send(b" ")
            time.sleep(0.02)
    assert time.monotonic() - started < VISITOR_SECONDS + 3


def test_who_sends_too_much_is_closed(endpoint: Endpoint) -> None:
    assert answer(endpoint, b"{" * (2 * MAX_GREETING_BYTES)) == b""
    assert not endpoint._visitors


def test_one_too_many_drops_the_oldest(endpoint: Endpoint) -> None:
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(connect(endpoint)) for _ in range(MAX_VISITORS + 1)]
        assert socks[0].recv(1) == b""
        socks[1].sendall(Dialler(HELLO, None).begin())  # it is in time
        assert json.loads(socks[1].recv(4096))["why"].startswith("this process is not that member")
        assert len(endpoint._visitors) == MAX_VISITORS - 1


def test_a_refusal_is_one_line_and_the_end(endpoint: Endpoint) -> None:
    said = answer(endpoint, Dialler(HELLO, None).begin())
    assert said.endswith(b"\n")
    assert json.loads(said)["ok"] is False


def test_an_old_dialler_of_a_member_here_reads_why(endpoint: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    old = {"world": "w", "generation": 1, "role": "lane", "from": 1, "to": 0, "incarnation": "c0ffee"}
    endpoint.expect("w", 1, "c0ffee", lambda _: socket.socket.close)
    said = json.loads(answer(endpoint, json.dumps(old).encode() + b"\n"))
    assert said["ok"] is False
    assert f"speaks protocol {PROTOCOL}, this process 1" in said["why"]
    assert f"speaks protocol 1, this process {PROTOCOL}" in caplog.text


def test_strangers_without_the_secret_are_warned_of_once(guarded: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        for secret in (None, b"other", None, b"another"):
            dialler = Dialler(HELLO, secret)
            with connect(guarded) as sock:
                sock.sendall(dialler.begin())
                if secret:
                    sock.sendall(dialler.take(sock.recv(4096)))
                assert json.loads(sock.recv(4096))["reason"] == "secret"
    assert len([r for r in caplog.records if r.levelno == logging.WARNING]) == 1
    assert SECRET.decode() not in caplog.text
    assert "MULTIWORLD_SECRET" in caplog.text
    assert not any(r.exc_info for r in caplog.records)


def test_with_a_secret_nobody_learns_who_is_here_without_it(guarded: Endpoint) -> None:
    """An incarnation that cannot be guessed is not known, with a proof or without."""
    told: set[Any] = set()
    for world in ("w", "v"):
        hello = Hello(Role.PROBE, world, 1, to=0, incarnation="0" * 16)
        told.add(json.loads(answer(guarded, Dialler(hello, None).begin()))["reason"])
    assert told == {"refused"}


def test_a_stranger_cannot_write_lines_into_the_log(guarded: Endpoint, caplog: pytest.LogCaptureFixture) -> None:
    world = "w\nCRITICAL forged \ud800" + "x" * 500
    guarded.expect(world, 1, "c0ffee", lambda _: socket.socket.close)
    answer(guarded, Dialler(Hello(Role.LANE, world, 1, 1, 0, "c0ffee"), None).begin())
    assert "\nCRITICAL" not in caplog.records[-1].getMessage()
    assert len(caplog.records[-1].getMessage()) < 700


def test_nothing_is_left_when_the_hub_ends(endpoint: Endpoint) -> None:
    with contextlib.ExitStack() as stack:
        socks = [stack.enter_context(connect(endpoint)) for _ in range(9)]
        deadline = time.monotonic() + 5
        while len(endpoint._visitors) < 9:
            assert time.monotonic() < deadline
            time.sleep(0.002)
        open_before = len(list(Path("/proc/self/fd").iterdir()))
        endpoint.hub.call_and_wait(endpoint.close)
        assert all(sock.recv(1) == b"" for sock in socks)
        assert len(list(Path("/proc/self/fd").iterdir())) <= open_before - 10
