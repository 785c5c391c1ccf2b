"""What is said on control connections in one generation, and nothing of those before it."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import socket
import threading
from collections.abc import Iterator

import pytest

from multiworld.process.hub import Hub
from multiworld.rendezvous.ledger import Claim
from multiworld.rendezvous.renewal import HeldLanes, Kept
from multiworld.transport.lines import Lines

MARK = bytes(range(32))
SECONDS = 5.0
PEER = 3


@pytest.fixture
def ends() -> Iterator[tuple[Lines, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.settimeout(SECONDS)
        lines = Lines()
        lines.put(PEER, ours)
        yield lines, theirs
        lines.close()


@pytest.mark.parametrize("piece", [1, 7, 31, 32, 33, 4096])
@pytest.mark.parametrize("before", [b"", b"old\n", MARK[:-1], b"cut" + MARK[:5]], ids=["", "line", "most", "cut"])
def test_what_comes_before_the_mark_is_dropped(ends: tuple[Lines, socket.socket], before: bytes, piece: int) -> None:
    lines, peer = ends
    lines.begin_at(MARK)
    said, heard = before + MARK + b"new\nlines\n", b""
    for at in range(0, len(said), piece):
        peer.sendall(said[at : at + piece])
        with contextlib.suppress(BlockingIOError):
            while True:
                heard += lines.recv(PEER, 3)
    assert heard == b"new\nlines\n"
    with pytest.raises(BlockingIOError):
        lines.recv(PEER, 1)
    peer.close()
    assert lines.recv(PEER, 1) == b""


def test_the_mark_goes_out_once_and_not_before_there_is_something_to_say(ends: tuple[Lines, socket.socket]) -> None:
    lines, peer = ends
    lines.begin_at(MARK)
    assert not select.select([peer], [], [], 0)[0]
    lines.send(PEER, b"first\n")
    lines.send(PEER, b"second\n")
    expected = MARK + b"first\nsecond\n"
    assert peer.recv(len(expected), socket.MSG_WAITALL) == expected


def test_a_mark_that_does_not_go_out_whole_goes_out_again(ends: tuple[Lines, socket.socket]) -> None:
    lines, peer = ends
    lines.begin_at(MARK)
    with contextlib.suppress(BlockingIOError):
        while True:  # until nothing more is taken
            lines.socks[PEER].send(b"x" * 4096)
    with pytest.raises(BlockingIOError):
        lines.send(PEER, b"lost\n")
    while select.select([peer], [], [], 0)[0]:
        peer.recv(1 << 16)
    lines.send(PEER, b"said\n")
    assert peer.recv(37, socket.MSG_WAITALL) == MARK + b"said\n"


def test_what_came_while_nobody_listened_is_heard_in_the_next_generation(ends: tuple[Lines, socket.socket]) -> None:
    lines, peer = ends
    hub, heard = Hub.acquire(), []
    try:
        lines.watch(hub, lambda: None)
        hub.call_and_wait(lambda: None)
        lines.rest()
        lines.begin_at(MARK)
        peer.sendall(b"old\n" + MARK + b"Rnew")
        hub.call_and_wait(lambda: None)
        assert lines.recv(PEER, 1) == b"R"  # as who joins does
        lines.watch(hub, lambda: heard.append(lines.recv(PEER, 64)))
        hub.call_and_wait(lambda: None)
        peer.sendall(b"er")
        hub.call_and_wait(lambda: None)
        hub.call_and_wait(lambda: None)  # which begins after what was ready with the first
        assert heard == [b"new", b"er"]
        lines.close()
        assert peer.recv(1) == b""
    finally:
        hub.release()


def test_lines_that_the_hub_is_to_watch_are_closed_by_it(ends: tuple[Lines, socket.socket]) -> None:
    """Else it may watch a descriptor that is another file's by then."""
    lines, peer = ends
    hub, gate = Hub.acquire(), threading.Event()
    try:
        hub.call(lambda: gate.wait(SECONDS))
        lines.watch(hub, lambda: None)
        lines.close()
        assert lines.socks
        gate.set()
        assert peer.recv(1) == b""
        assert not lines.socks
    finally:
        gate.set()
        hub.release()


def test_a_generation_goes_on_with_some_of_them_under_new_ranks() -> None:
    pairs = [socket.socketpair() for _ in range(4)]
    lines = Lines()
    for rank, (ours, theirs) in enumerate(pairs):
        theirs.settimeout(SECONDS)
        lines.put(rank, ours)
    lines.pick({0: 1, 2: 3})
    lines.begin_at(MARK)
    assert [pairs[old][1].recv(1) for old in (0, 2)] == [b"", b""]
    pairs[3][1].sendall(b"old" + MARK[:5])
    assert lines.ready() == set(), "it is of the last generation"
    pairs[3][1].sendall(MARK + b"from 3")
    assert lines.ready() == {2}
    assert lines.recv(2, 4) == b"from"
    assert lines.ready() == {2}, "the rest of it was forgotten"
    assert lines.recv(2, 4) == b" 3"
    assert lines.ready() == set()
    pairs[1][1].close()
    assert lines.ready() == {0}
    assert lines.recv(0, 1) == b""
    lines.drop(0)
    assert lines.ready() == set()
    lines.send(0, b"to nobody")
    lines.send(2, b"to 3")
    assert pairs[3][1].recv(64) == MARK + b"to 3"
    lines.close()
    assert pairs[3][1].recv(1) == b""


class LostHost(socket.socket):
    """A connection whose peer's host is gone: the kernel gives up, and says so once."""

    def recv(self, *_: object) -> bytes:
        raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))


def test_a_line_that_the_kernel_gave_up_is_told_as_ended() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        lines = Lines()
        lines.put(PEER, LostHost(fileno=ours.detach()))
        lines.begin_at(MARK)
        theirs.sendall(b"x")
        assert lines.ready() == {PEER}
        with pytest.raises(TimeoutError):
            lines.recv(PEER, 1)
        lines.close()


class Held:
    """The engine of the last generation."""

    def __init__(self) -> None:
        self.closed: set[int] = set()

    def part_with(self, descriptors: tuple[int, ...], close: bool) -> None:
        self.closed.update(descriptors if close else ())


def test_two_claims_for_one_kept_connection_are_believed_once() -> None:
    engine, lines = Held(), Lines()
    ours, theirs = socket.socketpair()
    with theirs:
        lines.put(1, ours)
        kept = Kept("last", 0, HeldLanes(engine, {1: 77}), lines)
        claims = [Claim("", "", 0, "", 0, 0, "", 0, kept=said) for said in ("", "last 1 1", "last 1 1")]
        held, picked = kept.among(claims)
        assert (held.descriptors, set(picked.socks), engine.closed) == ({1: 77}, {1}, set())
        held.close()
        picked.close()
        assert engine.closed == {77}
