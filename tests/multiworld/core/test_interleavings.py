"""Events between two steps of ours: a thread that ends, a leave in the middle of a rejoin, a late cancel.

Two members live in one process here, so that each step can be placed; `procs` serves where a member must not read.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from procs import cluster, wait_until

from multiworld import (
    BrokenWorldException,
    InvalidArgument,
    MultiWorld,
    PeerLost,
    World,
    WorldBroken,
    WorldClosed,
    WorldJoined,
    WorldState,
    WrongContext,
)
from multiworld.lab.context import Context
from multiworld.rendezvous import joining

SECONDS = 20.0


def at_once(*functions: Callable[[], Any]) -> None:
    """Run each in a thread of its own, and wait for all; the first error is raised."""
    errors: list[BaseException] = []

    def guarded(function: Callable[[], Any]) -> None:
        try:
            function()
        except BaseException as error:  # noqa: BLE001 - raised below
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(function,), daemon=True) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive()
    for error in errors:
        raise error


class Pair:
    """Two `MultiWorld` objects, members 0 and 1 of the same worlds."""

    def __init__(self, store: str) -> None:
        self.store = store
        self.a, self.b = MultiWorld(op_timeout=SECONDS), MultiWorld(op_timeout=SECONDS)

    def join(self, name: str, **options: Any) -> tuple[World, World]:
        at_once(*(lambda m=m, r=r: m.sync.join(name, r, 2, store=self.store, **options) for m, r in self._both()))
        return self.a[name], self.b[name]

    def _both(self) -> tuple[tuple[MultiWorld, int], tuple[MultiWorld, int]]:
        return (self.a, 0), (self.b, 1)


@pytest.fixture
def pair(store: str) -> Iterator[Pair]:
    made = Pair(store)
    yield made
    made.a.sync.close()
    made.b.sync.close()


def test_the_descriptor_of_a_thread_that_has_ended_is_written_to_no_more(pair: Pair, tmp_path: Path) -> None:
    a, b = pair.join("w")
    at_once(lambda: b.sync.recv(torch.zeros(1), 0), lambda: a.sync.send(torch.ones(1), 1))
    gc.collect()
    mine = tmp_path / "mine"
    mine.mkdir()
    files = [(mine / f"{i}").open("wb+", buffering=0) for i in range(8)]  # one has its number now
    many = torch.zeros(20_000_000)  # more than the socket takes at once: who waits is woken to write the rest
    at_once(lambda: b.sync.send(many, 0), lambda: a.sync.recv(torch.zeros(20_000_000), 1))
    for file in files:
        file.close()
    assert [path.read_bytes() for path in mine.iterdir()] == [b""] * 8


def test_what_the_hub_is_asked_after_its_end_is_done_all_the_same(tmp_path: Path) -> None:
    with MultiWorld() as mw:
        hub = mw._table.resources.hub
    assert not hub.thread.is_alive()
    files = [(tmp_path / f"{i}").open("wb+", buffering=0) for i in range(8)]
    asked: list[str] = []
    hub.call(lambda: asked.append("done"))
    assert asked == ["done"]
    for file in files:
        file.close()
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b""] * 8


def test_close_soon_after_a_break_closes_all_connections(store: str) -> None:
    for i in range(20):
        pair = Pair(store)
        a, b = pair.join(f"w{i}")
        ties = [sock for w in (a, b) for sock in w.member.session.control._lines.socks.values()]
        a.abort("on purpose")
        pair.a.sync.close()
        pair.b.sync.close()
        wait_until(lambda ties=ties: all(sock.fileno() < 0 for sock in ties), 5, "a control connection stays open")


def test_who_rejoins_after_leaving_is_a_member_again(pair: Pair) -> None:
    a, b = pair.join("w")
    a.sync.leave()
    assert "w" not in pair.a.worlds
    at_once(a.sync.rejoin, b.sync.rejoin)
    assert pair.a.worlds["w"] is a
    pair.a.sync.close()
    assert a.state is WorldState.CLOSED
    with pytest.raises(PeerLost):
        b.sync.recv(torch.zeros(1), 0)


def test_who_left_and_was_replaced_by_another_join_cannot_rejoin(pair: Pair) -> None:
    a, b = pair.join("w")
    a.sync.leave()
    b.sync.leave()
    again, _ = pair.join("w")
    with pytest.raises(InvalidArgument, match="another world of this name"):
        a.sync.rejoin()
    assert pair.a.worlds["w"] is again
    assert again.state is WorldState.ACTIVE


@pytest.mark.parametrize("way", ["leave", "close"])
def test_leaving_in_the_middle_of_a_rejoin_counts(pair: Pair, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = pair.join("w")
    b.abort("on purpose")
    real = joining.Rendezvous.run

    def run(self: joining.Rendezvous) -> Any:
        met = yield from real(self)
        if self._config.rank == 0:  # all have met, nothing is installed yet
            a.sync.leave() if way == "leave" else pair.a.sync.close()
        return met

    monkeypatch.setattr(joining.Rendezvous, "run", run)

    def refused() -> None:
        with pytest.raises((WorldClosed, WrongContext)):
            a.sync.rejoin()

    at_once(refused, b.sync.rejoin)
    assert a.state is not WorldState.ACTIVE
    assert dict(pair.a.worlds) == {}
    with pytest.raises(PeerLost):
        b.sync.recv(torch.zeros(1), 0)


def test_a_world_of_a_closed_event_loop_rejoins_through_threads(pair: Pair) -> None:
    async def both() -> tuple[World, World]:
        joins = (m.join("w", r, 2, store=pair.store) for m, r in ((pair.a, 0), (pair.b, 1)))
        return tuple(await asyncio.gather(*joins))  # type: ignore[return-value]

    a, b = asyncio.run(both())
    b.abort("on purpose")
    at_once(a.sync.rejoin, b.sync.rejoin)
    at_once(lambda: a.sync.barrier(), lambda: b.sync.barrier())
    assert a.generation == b.generation == 2


def test_a_join_cancelled_when_it_is_in_already_is_left(pair: Pair) -> None:
    async def main() -> None:
        other = threading.Thread(target=pair.b.sync.join, args=("w", 1, 2), kwargs={"store": pair.store})
        other.start()
        join = asyncio.ensure_future(pair.a.join("w", 0, 2, store=pair.store))
        await asyncio.sleep(0)
        wait_until(lambda: "w" in pair.a.worlds, SECONDS, "the join is not in")  # the loop is busy meanwhile
        join.cancel()
        with pytest.raises(asyncio.CancelledError):
            await join
        other.join(SECONDS)

    asyncio.run(main())
    assert dict(pair.a.worlds) == {}
    with pytest.raises(PeerLost):
        pair.b["w"].sync.recv(torch.zeros(1), 0)
    at_once(pair.b["w"].sync.rejoin, lambda: pair.a.sync.join("w", 0, 2, store=pair.store))


def test_a_leaving_peer_that_falls_silent_is_lost_to_who_waits_for_it(pair: Pair) -> None:
    a, _ = pair.join("w")

    def waits() -> None:
        with pytest.raises(PeerLost):
            a.sync.recv(torch.zeros(1), 1)

    receive = threading.Thread(target=waits, daemon=True)
    session = a.member.session
    session.leaving.add(1)
    session.peer_silent(1, 9.0)
    assert a.state is WorldState.ACTIVE  # nobody needs it
    receive.start()
    wait_until(lambda: bool(session.engine.operations), SECONDS, "the receive has not begun")
    session.peer_silent(1, 9.0)
    receive.join(SECONDS)
    assert not receive.is_alive()
    assert isinstance(a.failure, PeerLost)


def test_a_break_is_told_before_the_joining_that_follows_it(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = pair.join("w")
    seen: list[Any] = []
    pair.a.subscribe(seen.append)
    real = a.member.session.control.tell_break

    def slow(error: BrokenWorldException, **how: Any) -> None:  # the breaking thread is not scheduled for a while
        real(error, **how)
        wait_until(lambda: a.generation == 2, SECONDS, "not rejoined")

    monkeypatch.setattr(a.member.session.control, "tell_break", slow)

    def life(w: World, peer: int) -> None:
        with pytest.raises(BrokenWorldException):
            w.sync.recv(torch.zeros(1), peer)
        w.sync.rejoin()

    at_once(lambda: life(a, 1), lambda: life(b, 0), lambda: a.abort("on purpose"))
    told = [(type(event), event.generation) for event in seen if isinstance(event, WorldBroken | WorldJoined)]
    assert told == [(WorldBroken, 1), (WorldJoined, 2)]


def test_a_break_is_told_before_a_backend_is_aborted(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """An abort frees what a peer on the same host may be reading."""
    a, _ = pair.join("w")
    session, aborted, before = a.member.session, threading.Event(), list[bool]()
    slot, tell = session.slot(0), session.control.tell_break

    def slow(error: BrokenWorldException, **how: Any) -> None:  # the breaking thread is not scheduled for a while
        before.append(aborted.wait(0.3))
        tell(error, **how)

    class Backend:
        """The part of a driver that a break meets."""

        def abort(self) -> None:
            aborted.set()

        def close(self, _: float) -> None:
            """Nothing is left."""

    monkeypatch.setattr(session.control, "tell_break", slow)
    slot._driver = Backend()
    a.abort("on purpose")
    assert aborted.wait(SECONDS)
    assert before == [False]


def test_a_session_broken_at_its_first_tick_leaves_no_ticker(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = pair.a._table.resources.hub
    real = type(hub.monitor).add

    def add(self: Any, session: Any, *rest: Any) -> None:
        real(self, session, *rest)
        assert hub.call_and_wait(lambda: session.peer_silent(1 - session.membership.rank, 9.0))

    monkeypatch.setattr(type(hub.monitor), "add", add)
    a, b = pair.join("w")
    assert a.state is b.state is WorldState.BROKEN
    assert hub.call_and_wait(lambda: None)
    assert [owner for owner in map(_owner, hub._alarms) if owner in (a.member.session, b.member.session)] == []


def test_a_session_broken_with_a_deadline_ahead_leaves_no_alarm(pair: Pair) -> None:
    a, b = pair.join("w")
    hub = pair.a._table.resources.hub

    def waits() -> None:
        with pytest.raises(BrokenWorldException):
            a.sync.recv(torch.zeros(1), 1, timeout=100)

    def breaks() -> None:
        wait_until(lambda: a.member.session in map(_owner, hub._alarms), SECONDS, "the deadline is not looked at")
        b.abort("on purpose")

    at_once(waits, breaks)
    assert hub.call_and_wait(lambda: None)
    assert [owner for owner in map(_owner, hub._alarms) if owner in (a.member.session, b.member.session)] == []


def _owner(ticker: Any) -> Any:
    return getattr(ticker, "__self__", None)


def test_a_stream_that_is_let_go_of_listens_no_more(pair: Pair) -> None:
    before = len(pair.a._table.resources.bus._streams)  # the history's own

    async def main() -> int:
        for _ in range(10):
            pair.a.events()
        gc.collect()
        return len(pair.a._table.resources.bus._streams)

    assert asyncio.run(main()) == before


def test_nonsense_on_a_control_connection_ends_the_world(pair: Pair) -> None:
    a, b = pair.join("w")
    b.member.session.control._lines.socks[0].send(b"[1]\n")
    with pytest.raises(PeerLost, match="sent on its control connection what cannot be right"):
        a.sync.recv(torch.zeros(1), 1)


def _reads_late(context: Context, store: str) -> list[str]:
    gate, outcome = threading.Event(), ["", ""]

    def wait(operation: Any) -> None:  # a reader that gets no processor time for a while
        gate.wait(SECONDS)
        real(operation)

    def receive(tag: int) -> None:
        try:
            w.sync.recv(torch.zeros(25_000 if tag == 0 else 1), 0, tag=tag)
            outcome[tag] = "received"
        except PeerLost as error:
            outcome[tag] = f"PeerLost {error.how}"

    with MultiWorld(op_timeout=SECONDS) as mw:
        w = mw.sync.join("w", 1, 2, store=store)
        bridge = w.member.session.bridge
        real, bridge.wait = bridge.wait, wait  # type: ignore[method-assign]
        threads = [threading.Thread(target=receive, args=(tag,), daemon=True) for tag in (0, 1)]
        for thread in threads:
            assert context.recv() == "post"
            sent = w.member.session.bridge.traffic()[0][0]
            thread.start()
            wait_until(lambda sent=sent: w.member.session.bridge.traffic()[0][0] > sent, SECONDS, "not posted")
            context.send("posted")
        assert context.recv() == "read"
        gate.set()
        for thread in threads:
            thread.join(SECONDS)
        return outcome


def test_what_was_sent_arrives_although_the_receiver_has_asked_for_more(store: str) -> None:
    with cluster() as c, MultiWorld(op_timeout=SECONDS) as mw:
        late = c.start(_reads_late, store)
        w = mw.sync.join("w", 0, 2, store=store)

        def post() -> None:
            late.send("post")
            assert late.recv() == "posted"

        post()
        w.sync.send(torch.ones(25_000), 1, tag=0)  # which a socket of one host holds, unread
        post()  # not read by us before we leave
        leaving = threading.Thread(target=w.sync.leave, daemon=True)
        leaving.start()
        leaving.join(0.3)
        late.send("read")
        leaving.join(SECONDS)
        assert late.result() == ["received", "PeerLost left"]


def test_a_world_made_anew_is_not_undone_by_the_break_of_the_old(tmp_path: Path) -> None:
    from multiworld.manager import WorldManager

    async def main() -> None:
        manager = WorldManager()
        try:
            broken = SimpleNamespace(name="w", state=WorldState.ACTIVE, sync=SimpleNamespace(leave=pytest.fail))
            manager._announced.add("w")
            manager._worlds._table._worlds["w"] = broken  # type: ignore[assignment]
            manager._world_broke("w")  # what the watchdog tells of the old world comes late
            assert manager._announced == {"w"}
        finally:
            manager._worlds._table._worlds.clear()
            manager.cleanup()

    asyncio.run(main())
