"""Joins advance in a few threads, however many are under way; what waits for members holds none."""

from __future__ import annotations

import asyncio
import math
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from procs import cluster, wait_until

from multiworld import MultiWorld, RendezvousError, TcpStoreAddress
from multiworld.lab.context import Context
from multiworld.process.join_threads import MOST_THREADS, JoinJob, JoinThreads, Pause, Steps
from multiworld.store.client import Deadline, GreetingMode
from multiworld.store.sources import ThreadClients
from multiworld.worlds import twins

SECONDS = 60.0
WORLDS = 300
#: beside those of joins: the hub, and what answers pings
OTHER_THREADS = 4


def _of_ours() -> int:
    return sum(thread.name.startswith("mw-") for thread in threading.enumerate())


async def _most_threads(until: asyncio.Future[Any]) -> int:
    most = 0
    while not until.done():
        most = max(most, _of_ours())
        await asyncio.sleep(0.005)
    return most


def _joins_many(context: Context, store: TcpStoreAddress, rank: int) -> tuple[dict[str, int], int]:
    """Join all worlds at once, the members in opposite orders; generations, most threads."""

    async def main() -> tuple[dict[str, int], int]:
        async with MultiWorld(op_timeout=SECONDS) as mw:
            names = [f"w{number}" for number in range(WORLDS)][:: -1 if rank else 1]
            joins = asyncio.gather(*(mw.join(name, rank, 2, store=store, join_timeout=SECONDS) for name in names))
            most = await _most_threads(joins)
            worlds = await joins
            await asyncio.to_thread(context.send, "joined")
            await asyncio.to_thread(context.recv)
            return {w.name: w.generation for w in worlds}, most

    return asyncio.run(main())


@pytest.mark.slow
def test_many_joins_at_once_take_few_threads() -> None:
    with cluster() as c, MultiWorld() as host:
        store = host.serve_store()
        members = [c.start(_joins_many, store, rank) for rank in (0, 1)]
        assert [member.recv(2 * SECONDS) for member in members] == ["joined"] * 2
        (server,) = set(host._table.resources.stores._hosted.values())
        wait_until(lambda: not server._connections, SECONDS, "members that have joined keep connections to the store")
        for member in members:
            member.send("end")
        first, second = c.results(SECONDS)
    assert len(first[0]) == WORLDS
    assert first[0] == second[0], "members of one world are in one generation"
    for _, threads in (first, second):
        assert threads <= MOST_THREADS + OTHER_THREADS


def test_a_silent_store_holds_no_join_of_another_one_up() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent, MultiWorld() as mw:
        where = TcpStoreAddress("127.0.0.1", silent.getsockname()[1], hosted=False)

        async def main() -> int:
            waiting = [
                asyncio.ensure_future(mw.join(f"silent-{number}", 0, 1, store=where, join_timeout=SECONDS))
                for number in range(3 * MOST_THREADS)
            ]
            joined = await mw.join("w", 0, 1, store=mw.serve_store(), join_timeout=SECONDS)
            assert not any(each.done() for each in waiting)
            for each in waiting:
                each.cancel()
            await asyncio.wait(waiting)
            return joined.generation

        assert asyncio.run(main()) == 1


def test_a_join_that_never_got_a_thread_says_that_its_store_is_silent() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as silent, MultiWorld() as mw:
        where = TcpStoreAddress("127.0.0.1", silent.getsockname()[1], hosted=False)

        async def main() -> list[Any]:
            joins = (mw.join(f"w{number}", 0, 1, store=where, join_timeout=0.5) for number in range(3 * MOST_THREADS))
            return await asyncio.gather(*joins, return_exceptions=True)

        for error in asyncio.run(main()):
            assert isinstance(error, RendezvousError)
            assert "does not answer" in error.what


def test_who_waits_for_members_notices_the_close_at_once() -> None:
    """The pauses of a crowd are long; ``close`` cuts them short."""

    async def main() -> list[Any]:
        mw = MultiWorld()
        store = mw.serve_store()
        joins = [asyncio.ensure_future(mw.join(f"w{n}", 0, 2, store=store, join_timeout=SECONDS)) for n in range(100)]
        threads = mw._table.resources.stores.threads(store)
        while threads.waiting < len(joins) or _of_ours() > OTHER_THREADS:
            await asyncio.sleep(0.001)  # all wait for members, and hardly a thread is there
        await mw.close()
        return await asyncio.gather(*joins, return_exceptions=True)

    assert all("joining was cancelled" in str(error) for error in asyncio.run(main()))
    wait_until(lambda: _of_ours() == 0, SECONDS, "threads are left")


def test_a_join_that_a_signal_handler_ends_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: Any) -> None:
        raise ArithmeticError("of a signal handler")

    with MultiWorld() as mw:
        store = mw.serve_store()
        with monkeypatch.context() as patched:
            patched.setattr(twins, "wait_here", interrupted)
            with pytest.raises(ArithmeticError):
                mw.sync.join("w", 0, 2, store=store, join_timeout=3 * SECONDS)
        wait_until(
            lambda: mw._table.resources.stores.threads(store)._threads == 0,
            SECONDS,
            "the join goes on without its caller",
        )
        assert mw.sync.join("w", 0, 1, store=mw.serve_store()).size == 1


@pytest.fixture
def threads() -> Iterator[JoinThreads]:
    made = JoinThreads()
    yield made
    made.wake_all()
    wait_until(lambda: made._threads == 0, SECONDS, "threads are left")


def _waits(job: JoinJob[str]) -> Steps[str]:
    yield Pause(3600.0)
    return "done"


def test_a_wake_ends_a_pause(threads: JoinThreads) -> None:
    job = threads.start(_waits, lambda _: None)
    wait_until(lambda: threads.waiting == 1 and threads._idle, SECONDS, "it does not wait")
    job.wake()
    assert job.done.result(SECONDS) == "done"


def test_a_wake_while_it_runs_ends_the_next_pause(threads: JoinThreads) -> None:
    running, go = threading.Event(), threading.Event()

    def steps(job: JoinJob[str]) -> Steps[str]:
        running.set()
        assert go.wait(SECONDS)
        return (yield from _waits(job))

    job = threads.start(steps, lambda _: None)
    assert running.wait(SECONDS)
    job.wake()
    go.set()
    assert job.done.result(SECONDS) == "done"


def test_an_outcome_that_nobody_waits_for_is_given_back(threads: JoinThreads) -> None:
    given: list[str] = []
    job = threads.start(_waits, given.append)
    assert job.cancel()
    wait_until(lambda: given == ["done"], SECONDS, "it is not given back")
    assert job.given_up.is_set()


def test_there_are_never_more_threads_than_allowed_and_none_is_left(threads: JoinThreads) -> None:
    inside, most, lock = 0, 0, threading.Lock()
    gate = threading.Event()

    def steps(job: JoinJob[None]) -> Steps[None]:
        nonlocal inside, most
        for _ in range(3):
            with lock:
                inside += 1
                most = max(most, inside)
                if inside == MOST_THREADS:
                    gate.set()
            assert gate.wait(SECONDS)
            with lock:
                inside -= 1
            yield Pause(0.001)

    jobs = [threads.start(steps, lambda _: None) for _ in range(10 * MOST_THREADS)]
    for job in jobs:
        job.done.result(SECONDS)
    assert most == MOST_THREADS


def test_who_is_urgent_goes_first(threads: JoinThreads) -> None:
    """A peer waits for its connections; others may wait for a turn."""
    gate = threading.Event()

    def blocks(job: JoinJob[None]) -> Steps[None]:
        assert gate.wait(SECONDS)
        yield Pause(0.0)

    blockers = [threads.start(blocks, lambda _: None) for _ in range(MOST_THREADS)]
    wait_until(lambda: threads.waiting == 0, SECONDS, "not all threads are taken")
    first, second = (threads.start(_waits, lambda _: None) for _ in range(2))
    second.wake()
    assert [threads._take(math.inf) for _ in range(2)] == [second, first]
    for job in (first, second):
        threads._park(job, Pause(0.0))
    gate.set()
    for blocker in blockers:
        blocker.done.result(SECONDS)
    for job in (first, second):
        job.wake()
        assert job.done.result(SECONDS) == "done"


def test_a_short_pause_is_not_kept_waiting_by_a_long_one(threads: JoinThreads) -> None:
    """The thread that waits for the long pause learns of the short one, whose own thread has ended."""
    running, go = threading.Event(), threading.Event()

    def short(job: JoinJob[str]) -> Steps[str]:
        running.set()
        assert go.wait(SECONDS)
        yield Pause(0.01)
        return "done"

    first = threads.start(short, lambda _: None)
    assert running.wait(SECONDS)
    threads.start(_waits, lambda _: None)
    wait_until(lambda: threads.waiting == 1 and threads._idle, SECONDS, "the second thread does not wait")
    go.set()
    assert first.done.result(SECONDS) == "done"


def test_a_join_that_gets_no_thread_is_not_begun_later(threads: JoinThreads, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []

    def steps(job: JoinJob[None]) -> Steps[None]:
        begun.append("it")
        yield Pause(0.0)

    def refused(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError):
            threads.start(steps, lambda _: None)
    assert threads.waiting == 0
    other = threads.start(_waits, lambda _: None)
    wait_until(lambda: threads._idle, SECONDS, "it does not wait")
    other.wake()
    assert other.done.result(SECONDS) == "done"
    assert begun == []


def test_a_client_of_a_store_that_has_ended_is_not_used_again() -> None:
    """The store that has the address now does not know it."""
    clients = ThreadClients(GreetingMode())
    with MultiWorld() as mw:
        where = mw.serve_store()
        first = clients.get(where, Deadline(time.monotonic() + SECONDS))
        assert clients.get(where, Deadline(time.monotonic() + SECONDS)) is first
    with MultiWorld() as mw:
        mw.serve_store(where.host, where.port)
        assert clients.get(where, Deadline(time.monotonic() + SECONDS)).num_keys() >= 0
