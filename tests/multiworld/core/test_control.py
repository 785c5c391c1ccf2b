"""Invalid bytes on a control connection break the world; they are not passed over."""

from __future__ import annotations

import socket
from concurrent.futures import wait
from typing import Any

import pytest
from procs import wait_until
from table import SOON, members

from multiworld import PeerLost
from multiworld.session.control import MOST_REPORTS, Control

NESTED = b"[" * 30_000


INFINITE = b'{"say": "break", "ranks": [1e999]}\n'


@pytest.mark.parametrize("said", [INFINITE, NESTED + b"\n", b" " * 70_000], ids=["infinite", "nested", "endless"])
def test_rubbish_is_a_protocol_error(store: str, said: bytes) -> None:
    with members(store, 2) as ((first, second), _):
        sock = second.member.session.control._lines.socks[0]
        sock.setblocking(True)
        sock.sendall(said)
        wait_until(lambda: first.failure is not None, 10.0, "it is passed over")
        failure = first.failure
    assert isinstance(failure, PeerLost)
    assert failure.how == "protocol"


SIZE = 9
LOST = SIZE - 1


def test_one_member_tells_all_of_an_end_that_all_notice(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a large world does not cost the square of its size; those that notice it later tell their neighbours."""
    told: list[int] = []
    real = Control._tell

    def tell(self: Control, message: dict[str, Any], peers: Any) -> None:
        told.extend([len(tuple(peers))] * (message["say"] == "break"))
        real(self, message, peers)

    with members(store, SIZE) as (worlds, _):
        monkeypatch.setattr(Control, "_tell", tell)
        session = worlds[LOST].member.session

        def cut() -> None:
            for sock in session.control._lines.socks.values():
                sock.shutdown(socket.SHUT_RDWR)

        session.hub.call_and_wait(cut)  # else it tells the rest that the first is lost
        left = worlds[:LOST]
        wait_until(lambda: all(world.failure for world in worlds), SOON, "it is not noticed")
        assert all(world.failure.ranks == (LOST,) for world in left)
        wait_until(lambda: len(told) >= SIZE, SOON, "not all have told")
        assert all(world.member.gone() == {worlds[LOST].members[LOST].id} for world in left)
        monkeypatch.undo()
    assert sum(count >= LOST - 1 for count in told) <= 3  # the first, the lost one, and one that looked too early


def test_a_silence_that_one_member_is_told_of_is_told_to_all(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The others do not see it, and would take the end of who was told for the cause."""
    told: dict[int, int] = {}
    real = Control._tell

    def tell(self: Control, message: dict[str, Any], peers: Any) -> None:
        if message["say"] == "break":
            told[id(self)] = max(told.get(id(self), 0), len(tuple(peers)))
        real(self, message, peers)

    with members(store, SIZE) as (worlds, _):
        monkeypatch.setattr(Control, "_tell", tell)
        report = b'{"say": "break", "ranks": [3], "what": "rank 3 is silent", "kind": "PeerLost", "how": "silence"}\n'
        worlds[LOST].member.session.control._lines.socks[0].send(report)
        first = id(worlds[0].member.session.control)
        wait_until(lambda: all(world.failure for world in worlds), SOON, "some have not heard of it")
        assert told[first] == SIZE - 1
        monkeypatch.undo()


def test_reports_that_are_made_up_are_not_kept(store: str) -> None:
    with members(store, 2) as ((first, second), _):
        control, sock = first.member.session.control, second.member.session.control._lines.socks[0]
        sock.setblocking(True)
        for number in range(10 * MOST_REPORTS):
            sock.sendall(b'{"say": "break", "ranks": [%d], "what": "made up"}\n' % number)
        first.member.session.hub.call_and_wait(control.look)
        wait_until(lambda: first.failure is not None, SOON, "it is not heard")
        assert 0 < len(control._reported) <= MOST_REPORTS
        assert len(control._known) <= MOST_REPORTS


def test_a_report_that_reaches_one_member_only_is_told_on(store: str) -> None:
    """Who reports may end, or be cut off from others, before all have heard of it."""
    with members(store, SIZE) as (worlds, _):
        report = b'{"say": "break", "ranks": [3], "what": "rank 3 is lost", "kind": "PeerLost", "how": "eof"}\n'
        worlds[LOST].member.session.control._lines.socks[0].send(report)
        left = [world for world in worlds if world.world_rank not in (3, LOST)]
        wait_until(lambda: all(world.failure for world in worlds), SOON, "some have not heard of it")
        assert all("rank 8 reports: rank 3 is lost" in str(world.failure) for world in left)
        assert all(world.member.gone() == {worlds[0].members[3].id} for world in left)


def test_lines_are_not_handed_over_while_something_is_said(store: str) -> None:
    """A report of this generation would go out after the mark of the next one."""
    with members(store, 2) as (worlds, pool):
        worlds[0].abort("on purpose")
        wait_until(lambda: all(world.failure for world in worlds), 10.0, "it is not noticed")
        control = worlds[0].member.session.control
        with control._telling:
            handing = pool.submit(control.give_up)
            assert not wait([handing], 0.3).done
        handing.result(10.0).close()
