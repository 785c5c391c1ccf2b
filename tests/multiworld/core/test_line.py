"""What is said on a control connection in one generation, and nothing of those before it."""

from __future__ import annotations

import contextlib
import select
import socket
from collections.abc import Iterator

import pytest

from multiworld.process.hub import Hub
from multiworld.transport.line import Line

MARK = bytes(range(32))
SECONDS = 5.0


@pytest.fixture
def ends() -> Iterator[tuple[Line, socket.socket]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.settimeout(SECONDS)
        yield Line(ours), theirs


@pytest.mark.parametrize("piece", [1, 7, 31, 32, 33, 4096])
@pytest.mark.parametrize("before", [b"", b"old\n", MARK[:-1], b"cut" + MARK[:5]], ids=["", "line", "most", "cut"])
def test_what_comes_before_the_mark_is_dropped(ends: tuple[Line, socket.socket], before: bytes, piece: int) -> None:
    line, peer = ends
    line.begin_at(MARK)
    said, heard = before + MARK + b"new\nlines\n", b""
    for at in range(0, len(said), piece):
        peer.sendall(said[at : at + piece])
        with contextlib.suppress(BlockingIOError):
            while True:
                heard += line.recv(3)
    assert heard == b"new\nlines\n"
    with pytest.raises(BlockingIOError):
        line.recv(1)
    peer.close()
    assert line.recv(1) == b""


def test_the_mark_goes_out_once_and_not_before_there_is_something_to_say(ends: tuple[Line, socket.socket]) -> None:
    line, peer = ends
    line.begin_at(MARK)
    assert not select.select([peer], [], [], 0)[0]
    line.send(b"first\n")
    line.send(b"second\n")
    expected = MARK + b"first\nsecond\n"
    assert peer.recv(len(expected), socket.MSG_WAITALL) == expected


def test_a_mark_that_does_not_go_out_whole_goes_out_again(ends: tuple[Line, socket.socket]) -> None:
    line, peer = ends
    line.begin_at(MARK)
    with contextlib.suppress(BlockingIOError):
        while True:  # until nothing more is taken
            line.sock.send(b"x" * 4096)
    with pytest.raises(BlockingIOError):
        line.send(b"lost\n")
    while select.select([peer], [], [], 0)[0]:
        peer.recv(1 << 16)
    line.send(b"said\n")
    assert peer.recv(37, socket.MSG_WAITALL) == MARK + b"said\n"


def test_what_came_while_nobody_listened_is_heard_in_the_next_generation(ends: tuple[Line, socket.socket]) -> None:
    line, peer = ends
    hub, heard = Hub.acquire(), []
    try:
        hub.call_and_wait(lambda: line.watch(hub, lambda: None))
        line.rest()
        line.begin_at(MARK)
        peer.sendall(b"old\n" + MARK + b"Rnew")
        hub.call_and_wait(lambda: None)
        assert line.recv(1) == b"R"  # as who joins does
        hub.call_and_wait(lambda: line.watch(hub, lambda: heard.append(line.recv(64))))
        peer.sendall(b"er")
        hub.call_and_wait(lambda: None)
        hub.call_and_wait(lambda: None)  # which begins after what was ready with the first
        assert heard == [b"new", b"er"]
        line.close()
        assert peer.recv(1) == b""
    finally:
        hub.release()
