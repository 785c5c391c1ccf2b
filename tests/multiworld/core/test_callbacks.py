"""Callbacks of events may block and call anything: they run in a thread of their own, in order."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest
import torch
from procs import cluster, wait_until

from multiworld import MultiWorld, PeerLost, WorldBroken, WorldJoined, WorldLeft, WrongContext
from multiworld.events import Callbacks, Event
from multiworld.lab.context import Context

SECONDS = 10.0


def _recovers_in_a_callback(context: Context, store: str, rank: int) -> Any:
    outcome: list[Any] = []
    done = threading.Event()

    def heard(event: Event) -> None:
        if isinstance(event, WorldBroken):
            started = time.monotonic()
            w.sync.rejoin()
            w.sync.barrier()
            outcome.append(time.monotonic() - started)
            done.set()

    with MultiWorld() as mw:
        w = mw.sync.join("w", rank, 2, store=store)
        mw.subscribe(heard)
        context.send("subscribed")
        if rank == 0:
            context.recv()  # the other one is subscribed, and in no operation that the abort could end
            w.abort("on purpose")
        assert done.wait(SECONDS), "the callback did not get through"
        w.sync.barrier()
        return w.generation, outcome[0]


def test_a_callback_may_rejoin(store: str) -> None:
    with cluster() as c:
        members = [c.start(_recovers_in_a_callback, store, rank) for rank in (0, 1)]
        assert [member.recv() for member in members] == ["subscribed"] * 2
        members[0].send("go")
        for generation, seconds in c.results():
            assert generation == 2
            assert seconds < 3  # not as long as the hub waits for itself, which was 5 s


def _does_everything_in_a_callback(context: Context, store: str) -> Any:
    seen: list[Any] = []
    closed = threading.Event()

    def heard(event: Event) -> None:
        seen.append((type(event), event.world))
        if isinstance(event, WorldBroken):
            other = mw.sync.join("second", 0, 1, store=store)
            other.sync.all_reduce(torch.ones(3))
            other.sync.leave()
            mw.sync.close()
            with pytest.raises(WrongContext):
                mw.sync.join("third", 0, 1, store=store)
            closed.set()

    mw = MultiWorld()
    mw.subscribe(heard)
    mw.sync.join("first", 0, 1, store=store).abort("on purpose")
    assert closed.wait(SECONDS)
    wait_until(lambda: not [t for t in threading.enumerate() if t.name.startswith("mw-")], SECONDS, "threads are left")
    return seen


def test_a_callback_may_join_leave_and_close(store: str) -> None:
    with cluster() as c:
        assert c.start(_does_everything_in_a_callback, store).result() == [
            (WorldJoined, "first"),
            (WorldBroken, "first"),
            (WorldJoined, "second"),
            (WorldLeft, "second"),
        ]


def _slow_callback(context: Context, store: str, rank: int) -> str:
    gate = threading.Event()
    with MultiWorld() as mw:
        if rank == 0:
            mw.subscribe(lambda _: gate.wait(SECONDS) and None)
        w = mw.sync.join("w", rank, 2, store=store)
        context.send("joined")
        context.recv()
        with pytest.raises(PeerLost) as caught:
            w.sync.recv(torch.zeros(1), 1 - rank)
        gate.set()
        return caught.value.how


def test_a_blocked_callback_stalls_no_heartbeat(store: str) -> None:
    """The death of a peer, and its silence, are noticed while a callback blocks."""
    import signal

    with cluster() as c:
        first, second = c.start(_slow_callback, store, 0), c.start(_slow_callback, store, 1)
        assert (first.recv(), second.recv()) == ("joined", "joined")
        first.send("go")
        second.signal(signal.SIGSTOP)
        assert first.result() == "silence"


def test_callbacks_are_called_in_order_and_the_last_before_close_returns(store: str) -> None:
    seen: list[Any] = []

    def slow(event: Event) -> None:
        time.sleep(0.02)
        seen.append((type(event), event.generation))

    with MultiWorld() as mw:
        mw.subscribe(slow)
        w = mw.sync.join("w", 0, 1, store=store)
        assert seen == [(WorldJoined, 1)]  # told before join returns
        w.abort("on purpose")
        w.sync.rejoin()
    assert seen == [(WorldJoined, 1), (WorldBroken, 1), (WorldJoined, 2), (WorldLeft, 2)]


def test_who_unsubscribes_hears_nothing_more_and_a_failing_callback_stops_nobody() -> None:
    callbacks, seen, gate = Callbacks(), [], threading.Event()
    callbacks.subscribe(lambda _: gate.wait(SECONDS) and None)
    callbacks.subscribe(lambda _: 1 / 0)
    unsubscribe = callbacks.subscribe(lambda _: seen.append("gone"))
    callbacks.subscribe(lambda event: seen.append(event.world))
    callbacks.put(Event(world="w"))
    unsubscribe()  # queued for it already
    gate.set()
    callbacks.end()
    callbacks.join(SECONDS)
    assert seen == ["w"]


def test_a_callback_that_never_returns_costs_bounded_memory(caplog: pytest.LogCaptureFixture) -> None:
    callbacks, seen, gate, there = Callbacks(), [], threading.Event(), threading.Event()

    def blocked(event: Event) -> None:
        there.set()
        gate.wait(SECONDS)
        seen.append(event.generation)

    callbacks.subscribe(blocked)
    callbacks.put(Event(generation=-1))
    assert there.wait(SECONDS)
    for number in range(10_003):
        callbacks.put(Event(generation=number))
    assert "a subscriber is slow" in caplog.text
    gate.set()
    callbacks.end()
    callbacks.join(SECONDS)
    assert seen == [-1, *range(3, 10_003)]  # the oldest went
