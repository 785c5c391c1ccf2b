"""Lost peers: noticed in time, told to every waiter, nobody else disturbed."""

from __future__ import annotations

import asyncio
import ctypes
import re
import signal
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from procs import cluster, wait_until

from multiworld import P2P, BrokenWorldException, MultiWorld, OpTimeout, PeerLost, World, WorldClosed, WorldState
from multiworld.lab.context import Context


def _idle_member(context: Context, store: str, rank: int, names: list[str], size: int = 2) -> None:
    """Joins and then does nothing until it is told to end."""
    with MultiWorld() as mw:
        for name in names:
            mw.sync.join(name, rank, size, store=store)
        context.send("joined")
        context.recv(60)


def _waiting_leader(context: Context, store: str, operation: str) -> dict[str, Any]:
    """Waits in an operation of world "a" and reports how that ended; echoes in world "b" meanwhile."""

    async def main() -> dict[str, Any]:
        async with MultiWorld() as mw:
            a = await mw.join("a", 0, 2, store=store)
            b = await mw.join("b", 0, 2, store=store)
            t = torch.zeros(200_000)
            await b.barrier()
            calls = {"recv": lambda: a.recv(t, 1), "all_reduce": lambda: a.all_reduce(t), "barrier": a.barrier}
            task = asyncio.create_task(calls[operation]())
            await asyncio.sleep(0)  # its first step has begun the operation
            context.send("waiting")
            with pytest.raises(BrokenWorldException) as caught:
                await task
            ended = time.monotonic()
            await b.barrier()  # the other world goes on
            error = caught.value
            assert isinstance(error, PeerLost), error
            return {
                "ended": ended,
                "ranks": error.ranks,
                "how": error.how,
                "world": error.world,
                "op": error.operation,
                "b": b.state,
                "a": a.state,
            }

    return asyncio.run(asyncio.wait_for(main(), 40))


def _barrier_twice(context: Context, store: str) -> None:
    with MultiWorld() as mw:
        b = mw.sync.join("b", 1, 2, store=store)
        b.sync.barrier()
        b.sync.barrier()


@pytest.mark.parametrize("operation", ["recv", "all_reduce", "barrier"])
@pytest.mark.parametrize(
    ("signal_number", "limit", "how"), [(signal.SIGKILL, 0.3, "eof"), (signal.SIGSTOP, 1.2, "silence")]
)
def test_a_lost_peer_breaks_its_world_only(
    store: str, operation: str, signal_number: int, limit: float, how: str
) -> None:
    with cluster() as c:
        victim = c.start(_idle_member, store, 1, ["a"])
        c.start(_barrier_twice, store)
        leader = c.start(_waiting_leader, store, operation)
        assert victim.recv() == "joined"
        assert leader.recv() == "waiting"
        started = time.monotonic()
        victim.signal(signal_number)
        outcome = leader.result()
    assert outcome["ended"] - started < limit
    assert (outcome["ranks"], outcome["how"], outcome["world"], outcome["op"]) == ((1,), how, "a", operation)
    assert (outcome["a"], outcome["b"]) == (WorldState.BROKEN, WorldState.ACTIVE)


def _hold_the_gil(context: Context, store: str, seconds: float) -> None:
    with MultiWorld() as mw:
        w = mw.sync.join("w", 1, 2, store=store)
        w.sync.barrier()
        started = time.monotonic()
        ctypes.PyDLL(None).usleep(int(seconds * 1e6))  # PyDLL: a C call that keeps the GIL
        assert time.monotonic() - started >= seconds
        w.sync.barrier()


def _patient(context: Context, store: str) -> tuple[str, list[str]]:
    with MultiWorld() as mw:
        events: list[str] = []
        mw.subscribe(lambda event: events.append(type(event).__name__))
        w = mw.sync.join("w", 0, 2, store=store)
        w.sync.barrier()
        w.sync.barrier()
        return w.state.value, events


def test_a_peer_that_holds_its_gil_is_not_lost(store: str) -> None:
    with cluster() as c:
        c.start(_hold_the_gil, store, 3.0)
        patient = c.start(_patient, store)
        state, events = patient.result()
    assert state == "active"
    assert "PeerSuspected" not in events


#: each waits for rank 1
LATE: dict[str, Callable[[World], Any]] = {
    "recv": lambda w: w.sync.recv(torch.zeros(1), 1, timeout=0.3),
    "batch": lambda w: w.sync.batch_p2p([P2P("recv", torch.zeros(1), 1)], timeout=0.3),
    "barrier": lambda w: w.group([0, 1]).sync.barrier(timeout=0.3),
}


def _times_out(context: Context, store: str, operation: str) -> dict[str, Any]:
    with MultiWorld() as mw:
        w = mw.sync.join("w", 0, 3, store=store)
        started = time.monotonic()
        with pytest.raises(OpTimeout) as caught:
            LATE[operation](w)
        took = time.monotonic() - started
        with pytest.raises(OpTimeout):
            w.sync.barrier()
        return {"took": took, "text": str(caught.value), "ranks": caught.value.ranks, "state": w.state}


def _told(context: Context, store: str, rank: int) -> PeerLost:
    with MultiWorld() as mw:
        w = mw.sync.join("w", rank, 3, store=store)
        with pytest.raises(PeerLost) as caught:
            w.sync.recv(torch.zeros(1), 0, tag=3)
        return caught.value


@pytest.mark.parametrize("operation", LATE)
def test_a_passed_deadline_breaks_the_world_and_all_learn_who_was_waited_for(store: str, operation: str) -> None:
    with cluster() as c:
        late = c.start(_times_out, store, operation)
        told = [c.start(_told, store, rank) for rank in (1, 2)]
        outcome, errors = late.result(), [one.result() for one in told]
    assert 0.3 <= outcome["took"] < 5
    assert (outcome["state"], outcome["ranks"]) == (WorldState.BROKEN, (1,))
    assert re.search(r"rank 1 to send|ranks \[1\] to call it", outcome["text"])
    for error in errors:
        assert (error.how, error.ranks) == ("reported", (1,))
        assert "not done within 0.3 s" in error.what
    assert "took no part" in errors[0].cause


def _aborts(context: Context, store: str) -> str:
    with MultiWorld() as mw:
        w = mw.sync.join("w", 0, 2, store=store)
        w.sync.recv(torch.zeros(1), 1)  # the other one is in
        w.abort("disk full")
        with pytest.raises(WorldClosed) as caught:
            w.sync.barrier()
        return str(caught.value)


def _is_aborted(context: Context, store: str) -> str:
    with MultiWorld() as mw:
        w = mw.sync.join("w", 1, 2, store=store)
        w.sync.send(torch.zeros(1), 0)
        with pytest.raises(PeerLost) as caught:
            w.sync.barrier()
        return str(caught.value)


def test_abort_ends_the_world_for_everybody_with_its_reason(store: str) -> None:
    with cluster() as c:
        a, b = c.start(_aborts, store), c.start(_is_aborted, store)
        assert "disk full" in a.result()
        assert "disk full" in b.result()


def _aborts_at_once(context: Context, store: str) -> None:
    with MultiWorld() as mw:
        mw.sync.join("w", 1, 2, store=store).abort("at once")
        context.send("aborted")
        context.recv(60)


def _joins_slowly(context: Context, store: str) -> Any:
    """Wait before each step that makes a session, until the hub's thread has taken in what the peer says."""
    from multiworld.liveness.monitor import Monitor
    from multiworld.process.hub import Hub
    from multiworld.session.control import Control

    def waits(owner: Any, name: str, hub: Callable[[Any], Hub]) -> None:
        real = getattr(owner, name)

        def slow(self: Any, *args: Any) -> None:
            real(self, *args)
            time.sleep(0.3)
            assert hub(self).call_and_wait(lambda: None)

        setattr(owner, name, slow)

    with MultiWorld() as mw:
        waits(Control, "__init__", lambda control: control._session.hub)
        waits(Monitor, "add", lambda monitor: monitor._hub)
        w = mw.sync.join("w", 0, 2, store=store)
        with pytest.raises(PeerLost) as caught:
            w.sync.recv(torch.zeros(1), 1)
        wait_until(lambda: not mw._table.resources.hub.monitor._members, 10, "the broken session is still watched for")
        return str(caught.value)


def test_a_break_that_comes_while_the_session_is_made(store: str) -> None:
    with cluster() as c:
        peer, slow = c.start(_aborts_at_once, store), c.start(_joins_slowly, store)
        assert peer.recv(60) == "aborted"
        assert "at once" in slow.result()


def _leaves_early(context: Context, store: str, rank: int) -> Any:
    with MultiWorld() as mw:
        w = mw.sync.join("w", rank, 2, store=store)
        if rank == 0:
            w.sync.send(torch.arange(1_000_000.0), 1)
            return None
        t = torch.zeros(1_000_000)
        w.sync.recv(t, 0)
        with pytest.raises(PeerLost) as caught:
            w.sync.recv(t, 0)
        return t[-1].item(), caught.value.how


def test_what_was_sent_before_leaving_arrives(store: str) -> None:
    with cluster() as c:
        c.start(_leaves_early, store, 0)
        assert c.start(_leaves_early, store, 1).result() == (999_999.0, "left")


def _survivor_of_three(context: Context, store: str, rank: int) -> tuple[tuple[int, ...], str]:
    with MultiWorld() as mw:
        w = mw.sync.join("w", rank, 3, store=store)
        context.send("joined")
        with pytest.raises(PeerLost) as caught:
            w.sync.recv(torch.zeros(1), 1 - rank)  # not the one that dies
        return caught.value.ranks, caught.value.how


def test_all_members_blame_the_one_that_died(store: str) -> None:
    with cluster() as c:
        survivors = [c.start(_survivor_of_three, store, rank) for rank in (0, 1)]
        victim = c.start(_idle_member, store, 2, ["w"], 3)
        assert [p.recv() for p in (*survivors, victim)] == ["joined"] * 3
        victim.kill()
        for survivor in survivors:
            ranks, how = survivor.result()
            assert ranks == (2,)
            assert how in ("eof", "reported")


def _briefly_stopped(context: Context, store: str, rank: int) -> Any:
    events: list[str] = []
    with MultiWorld() as mw:
        mw.subscribe(lambda event: events.append(type(event).__name__))
        w = mw.sync.join("w", rank, 2, store=store)
        assert w.member.session.hub.call_and_wait(lambda: None)  # it watches, and so has something to be late for
        context.send("joined")
        context.recv()
        try:
            w.sync.barrier(timeout=10)
        except PeerLost as lost:
            return str(lost)
        if rank == 1:
            wait_until(lambda: "OwnStall" in events, 5, "the stall was not noticed")
        return "fine"


def test_a_short_stop_accuses_nobody(store: str) -> None:
    """Stopped for less than the others' patience: no world breaks, and the stopped one does not blame the others."""
    with cluster() as c:
        a, b = c.start(_briefly_stopped, store, 0), c.start(_briefly_stopped, store, 1)
        a.recv(), b.recv()
        b.signal(signal.SIGSTOP)
        time.sleep(0.45)  # the length of the fault itself
        b.signal(signal.SIGCONT)
        a.send("go"), b.send("go")
        assert (a.result(), b.result()) == ("fine", "fine")
