"""Heartbeats: what answers them, who is served, who watches whom, and what a silence is worth."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from procs import cluster, open_links, process_state, wait_until
from table import members

from multiworld import MultiWorld, OwnStall
from multiworld.config import NetworkSettings
from multiworld.lab.context import Context
from multiworld.liveness import neighbour
from multiworld.liveness.monitor import SUCCESSORS, watched_by
from multiworld.liveness.neighbour import Starvation, frozen, this_process
from multiworld.liveness.peer import tcp_info
from multiworld.liveness.pulse import MAX_AT_ONCE, PING, PONG, THREAD_NAME, Responder
from multiworld.process.hub import Hub
from multiworld.rendezvous.wiring import dial as dial_endpoint
from multiworld.transport.greeting import GreetingError, Hello, Role

SECONDS = 10.0


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """Both ends of a TCP connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        ours = socket.create_connection(server.getsockname(), timeout=SECONDS)
        theirs, _ = server.accept()
    return ours, theirs


@pytest.fixture
def responder() -> Iterator[Responder]:
    """One of a hub of its own."""
    hub = Hub.acquire()
    made = Responder(hub)
    hub.on_close(made.close)
    yield made
    hub.release()
    assert not made._thread.is_alive()


def adopted(responder: Responder) -> socket.socket:
    """The peer's end of a connection that the responder serves."""
    ours, theirs = tcp_pair()
    assert responder._hub.call_and_wait(lambda: responder.adopt(theirs))
    return ours


def test_each_ping_is_answered(responder: Responder) -> None:
    with adopted(responder) as peer:
        for count in (1, 3, MAX_AT_ONCE, 1000):
            peer.sendall(PING * count)
            got = b""
            while len(got) < count:
                got += peer.recv(count)
            assert got == PONG * count


@pytest.mark.parametrize("said", [b"x", PING + b"x", PONG, b"\0" * 5000, b""], ids=["x", "px", "pong", "many", "end"])
def test_anything_else_ends_that_connection_and_no_other(responder: Responder, said: bytes) -> None:
    with adopted(responder) as good, adopted(responder) as bad:
        bad.sendall(said) if said else bad.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionResetError):
            while bad.recv(64):
                pass
        good.sendall(PING)
        assert good.recv(1) == PONG
        wait_until(lambda: responder.connections == 1, SECONDS, "the connection that ended is kept")
    wait_until(lambda: responder.connections == 0, SECONDS, "the connection that ended is kept")


def test_who_reads_no_answers_costs_nothing(responder: Responder) -> None:
    with adopted(responder) as greedy, adopted(responder) as good:
        greedy.setblocking(False)
        with contextlib.suppress(BlockingIOError):
            while True:  # until both directions are full
                greedy.send(PING * 65536)
        good.sendall(PING)
        assert good.recv(1) == PONG


def test_random_ends_leave_nothing(responder: Responder) -> None:
    draw = random.Random(1)
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        peers = [adopted(responder) for _ in range(10)]
        draw.shuffle(peers)
        for peer in peers:
            with contextlib.suppress(OSError):
                peer.send(draw.choice((PING, b"?", PING * 70)))
            peer.close()
    wait_until(lambda: responder.connections == 0, SECONDS, "connections that ended are kept")
    assert len(list(Path("/proc/self/fd").iterdir())) <= before  # fewer: what tests before this one held


def test_strangers_and_wrong_members_are_not_served(store: str) -> None:
    with members(store, 2) as (worlds, _):
        session = worlds[0].member.session
        assert session.hub.call_and_wait(lambda: None)  # what it was asked when we joined is done
        member = session.hub.monitor._members[session]
        served = session.hub.responder
        wait_until(lambda: served.connections == 1, SECONDS, "both members live here, and need one connection")
        with member._dial(1, 5.0) as more:
            more.sendall(PING)
            assert more.recv(1) == PONG
        hello = Hello(Role.PULSE, "w", 1, 0, 1, member.claims[1].incarnation)
        for wrong in ({"incarnation": "other"}, {"generation": 7}, {"world": "v"}, {"to": 0}):
            with pytest.raises(GreetingError):
                dial_endpoint(member.claims[1], replace(hello, **wrong), NetworkSettings(), 5.0)
        wait_until(lambda: served.connections == 1, SECONDS, "one more is kept")


def test_one_connection_serves_all_worlds_of_two_processes(store: str) -> None:
    with MultiWorld() as a, MultiWorld() as b:
        threads = [
            threading.Thread(target=mw.sync.join, args=(f"w{i}", rank, 2), kwargs={"store": store})
            for i in range(5)
            for rank, mw in enumerate((a, b))
        ]
        for pair in zip(threads[::2], threads[1::2], strict=True):
            for thread in pair:
                thread.start()
            for thread in pair:
                thread.join(SECONDS)
        hub = a._table.resources.hub
        assert hub.call_and_wait(lambda: None)
        (process,) = hub.monitor._processes.values()  # both live here, and watch this process
        assert len(process.watches) == 10
        wait_until(lambda: hub.responder.connections == 1, SECONDS, "several connections are kept")


def test_a_heartbeat_connection_that_is_lost_is_made_again(store: str) -> None:
    with members(store, 2) as (worlds, pool):
        hub = worlds[0].member.session.hub
        events: list[Any] = []
        for world in worlds:
            world.member.owner.subscribe(events.append)
        assert hub.call_and_wait(lambda: None)  # the monitor has heard of both worlds
        (process,) = hub.monitor._processes.values()
        first = process._sock
        assert hub.call_and_wait(lambda: first.shutdown(socket.SHUT_RDWR))
        wait_until(lambda: process._sock not in (None, first), SECONDS, "it is not made again")
        heard = process.last_heard
        wait_until(lambda: process.last_heard > heard, SECONDS, "nothing is heard on it")
        assert [event for event in events if not isinstance(event, OwnStall)] == []
        assert list(pool.map(lambda w: w.sync.all_reduce(torch.ones(1)), worlds)) == [None, None]


def test_nothing_is_left_when_all_are_gone(store: str) -> None:
    def counted() -> tuple[int, int]:
        return len(list(Path("/proc/self/fd").iterdir())), len(list(Path("/proc/self/task").iterdir()))

    with members(f"{store}0", 2):
        pass
    before = counted()
    for turn in range(5):
        with members(f"{store}{turn + 1}", 5):
            pass
    wait_until(lambda: counted()[0] <= before[0] and counted()[1] <= before[1], SECONDS, f"{before} before")


def _forks(context: Context, store: str, rank: int) -> None:
    with MultiWorld() as mw, MultiWorld():
        mw.sync.join("w", rank, 2, store=store)
        child = os.fork()
        if child == 0:
            assert mw._table.resources.hub._responder is not None
            mw._table.resources.hub.drop_in_child()  # said by each of several owners; the numbers are others' by now
            sockets = open_links()
            context.send([s for s in sockets if s.startswith("socket:")])
            signal.pause()
        context.recv()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_a_forked_child_holds_no_heartbeat_connection(store: str) -> None:
    with cluster() as c:
        forks = [c.start(_forks, store, rank) for rank in (0, 1)]
        held = [set(proc.recv()) for proc in forks]
        others = [{os.readlink(e) for e in Path(f"/proc/{p.pid}/fd").iterdir()} for p in forks]  # noqa: PTH115
        for mine, parent in zip(held, others, strict=True):
            pipe_to_the_test = 1
            assert len(mine & parent) <= pipe_to_the_test, mine & parent
        for proc in forks:
            proc.send("go")
        c.results()


def _forks_while_it_takes_a_connection_over(context: Context, store: str, rank: int) -> None:
    """The hub has just taken the connection off one table, and it is on no other yet."""
    between, go_on, adopt = threading.Event(), threading.Event(), Responder.adopt

    def slow(responder: Responder, sock: socket.socket) -> None:
        between.set()
        assert go_on.wait(SECONDS)
        adopt(responder, sock)

    def fork() -> None:
        assert between.wait(SECONDS)
        child = os.fork()
        if child == 0:
            context.send([s for s in open_links() if s.startswith("socket:")])
            signal.pause()
        go_on.set()
        context.recv()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

    Responder.adopt = slow  # type: ignore[method-assign]
    forker = threading.Thread(target=fork)
    forker.start()
    with MultiWorld() as mw:
        mw.sync.join("w", rank, 2, store=store)
        forker.join()


def test_a_child_forked_while_a_connection_is_taken_over_does_not_hold_it(store: str) -> None:
    with cluster() as c:
        forks = [c.start(_forks_while_it_takes_a_connection_over, store, rank) for rank in (0, 1)]
        held = [set(proc.recv()) for proc in forks]
        assert [len(sockets) for sockets in held] == [1, 1], "more than the pipe to the test"
        for proc in forks:
            proc.send("go")
        c.results()


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 64])
def test_any_lost_member_is_behind_a_live_one_that_watches_it(size: int) -> None:
    draw = random.Random(size)
    for _ in range(300):
        departed = {r for r in range(size) if draw.random() < 0.2}
        leaving = {r for r in range(size) if draw.random() < 0.2}
        present = [r for r in range(size) if r not in departed]
        gone = {r for r in present if draw.random() < draw.random()} - leaving
        alive = [r for r in present if r not in gone and r not in leaving]
        watched = {r: watched_by(r, size, departed, leaving) for r in alive}
        assert all(r not in ring and not departed & set(ring) for r, ring in watched.items())
        if gone and alive:
            assert any(gone & set(ring) for ring in watched.values())
        if size <= SUCCESSORS + 1:
            assert all(set(ring) == set(present) - {r} for r, ring in watched.items())


def _spins(context: Context) -> None:
    comm = Path(f"/proc/self/task/{threading.get_native_id()}/comm")
    comm.write_text(THREAD_NAME)
    context.send(this_process())
    while True:
        pass


def _sleeps(context: Context) -> None:
    Path(f"/proc/self/task/{threading.get_native_id()}/comm").write_text(THREAD_NAME)
    context.send(this_process())
    signal.pause()


def test_only_who_wants_to_run_is_starved() -> None:
    with cluster() as c:
        spins, sleeps = c.start(_spins), c.start(_sleeps)
        busy, idle = Starvation(spins.recv()), Starvation(sleeps.recv())
        wait_until(lambda: process_state(sleeps.pid) == "S", SECONDS, "it does not sleep")
        idle.evident()  # what it did before it slept
        time.sleep(0.05)  # the time that is looked at
        assert busy.evident()
        assert not idle.evident()
        spins.signal(signal.SIGSTOP)
        assert not busy.evident()
        assert not busy.evident()
        spins.kill()
        assert not busy.evident()


def test_a_process_elsewhere_is_never_starved(monkeypatch: pytest.MonkeyPatch) -> None:
    us = this_process()
    monkeypatch.setattr(neighbour, "machine", lambda: "elsewhere")
    assert us.running() is None
    assert not Starvation(us).evident()


def test_a_process_that_is_not_frozen() -> None:
    assert not frozen(os.getpid())
    assert this_process().running()
    assert frozen(2**22 + 1) is None


def test_the_kernel_says_when_something_came() -> None:
    left, right = tcp_pair()
    with left, right:
        right.sendall(b"x")
        assert left.recv(1) == b"x"
        time.sleep(0.2)  # the age that is looked for
        info = tcp_info(left)
        assert info is not None
        assert info.data_age >= 0.15
        wait_until(lambda: (at := tcp_info(right)) is not None and at.unanswered == 0, SECONDS, "not acknowledged")


def test_an_idle_hub_sleeps(store: str) -> None:
    """It wakes for the pings, not more often: the five a second of one peer process here."""
    with members(store, 2) as (worlds, _):
        hub = worlds[0].member.session.hub
        wakes: list[float] = []
        real = hub.turn

        def counting() -> None:
            wakes.append(time.monotonic())
            real()

        hub.turn = counting  # type: ignore[method-assign]
        time.sleep(2.0)  # the time that is judged
        assert 5 <= len(wakes) <= 25, len(wakes)
