"""Cancellation, event loops, forks, interrupts and exits: one meaning each, and typed errors at once."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import pickle
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from procs import cluster, process_state, program, wait_until

from multiworld import (
    BrokenWorldException,
    InvalidArgument,
    MultiWorld,
    MultiWorldError,
    OpTimeout,
    PeerLost,
    RendezvousError,
    WorldClosed,
    WrongContext,
)
from multiworld.lab.context import Context


def _cancels(context: Context, store: str, rank: int) -> Any:
    async def main() -> Any:
        async with MultiWorld() as mw:
            w = await mw.join("w", rank, 2, store=store)
            if rank == 1:
                await w.barrier()
                for i in range(4):
                    await w.send(torch.tensor([float(i)]), 0)
                await w.barrier()
                return None
            abandoned, got = torch.full((1,), -1.0), torch.zeros(1)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(w.recv(abandoned, 1), 0.05)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(w.recv(got, 1, tag=9), 0.05)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(w.send(got, 1, tag=7), 0.05)
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(w.recv(got), 0.05)  # from any source
            await w.barrier()
            values = []
            for _ in range(4):
                await w.recv(got, 1)
                values.append(got.item())
            await w.barrier()
            return values, abandoned.item(), w.state.value

    return asyncio.run(asyncio.wait_for(main(), 20))


def test_a_cancelled_receive_loses_no_message(store: str) -> None:
    with cluster() as c:
        first = c.start(_cancels, store, 0)
        c.start(_cancels, store, 1)
        assert first.result() == ([0.0, 1.0, 2.0, 3.0], -1.0, "active")


def _cancels_for_another_length(context: Context, store: str, rank: int) -> Any:
    async def main() -> Any:
        async with MultiWorld() as mw:
            w = await mw.join("w", rank, 2, store=store)
            if rank == 1:
                await w.barrier()
                await w.send(torch.ones(5), 0)
                return None
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(w.recv(torch.zeros(3), 1), 0.05)
            task = asyncio.create_task(w.recv(got := torch.zeros(5), 1))
            await asyncio.sleep(0)  # its first step has begun the receive
            await w.barrier()
            await task
            return got.tolist()

    return asyncio.run(asyncio.wait_for(main(), 20))


def test_after_a_cancelled_receive_another_length_can_be_received(store: str) -> None:
    with cluster() as c:
        first = c.start(_cancels_for_another_length, store, 0)
        c.start(_cancels_for_another_length, store, 1)
        assert first.result() == [1.0] * 5


def _cancels_collective(context: Context, store: str, rank: int) -> Any:
    async def main() -> Any:
        async with MultiWorld() as mw:
            w = await mw.join("w", rank, 2, store=store, on_cancel="finish")
            t = torch.ones(200_000)
            if rank == 0:
                with pytest.raises(asyncio.TimeoutError):
                    await asyncio.wait_for(w.all_reduce(t), 0.05)
                context.send("cancelled")
            else:
                context.recv()
                await w.all_reduce(t)
            other = torch.ones(200_000)
            await w.all_reduce(other)
            return t[0].item(), other[0].item()

    return asyncio.run(asyncio.wait_for(main(), 20))


def test_a_cancelled_collective_that_is_to_finish_goes_on_in_its_place(store: str) -> None:
    with cluster() as c:
        first, second = c.start(_cancels_collective, store, 0), c.start(_cancels_collective, store, 1)
        assert first.recv() == "cancelled"
        second.send("go")
        assert (first.result(), second.result()) == ((1.0, 2.0), (2.0, 2.0))  # cancelled: its tensor is its own


def _pending_when_loop_closes(context: Context, store: str, rank: int) -> str:
    mw = MultiWorld()

    async def main() -> None:
        w = await mw.join("w", rank, 2, store=store)
        pending = asyncio.create_task(w.recv(torch.zeros(1), 1 - rank))
        await asyncio.sleep(0)  # its first step has begun the receive
        assert not pending.done()

    loop = asyncio.new_event_loop()
    loop.run_until_complete(main())
    with contextlib.suppress(Exception):
        loop.close()
    mw["w"].sync.barrier()
    mw.sync.close()
    return "fine"


def test_a_loop_closed_with_operations_pending(store: str) -> None:
    with cluster() as c:
        c.start(_pending_when_loop_closes, store, 0), c.start(_pending_when_loop_closes, store, 1)
        assert c.results() == ["fine", "fine"]


FORKS = """
import os, sys, torch
from multiworld import MultiWorld, WrongContext
with MultiWorld() as mw:
    w = mw.sync.join("w", int(sys.argv[2]), 2, store=sys.argv[1], join_timeout=80)
    w.sync.all_reduce(torch.ones(200_000))
    child = os.fork()
    if child == 0:
        try:
            w.sync.barrier()
        except WrongContext as error:
            assert "forked child" in str(error)
            sys.exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    t = torch.ones(200_000)
    w.sync.all_reduce(t)
    print(t[0].item())
"""


def test_use_after_fork_is_refused_and_the_parent_goes_on(store: str) -> None:
    with ThreadPoolExecutor() as pool:
        assert list(pool.map(lambda rank: run_script(FORKS, store, rank), "01")) == ["2.0", "2.0"]


def _forked_child_survives(context: Context, store: str) -> None:
    mw = MultiWorld()
    mw.sync.join("w", 1, 2, store=store)
    if os.fork() == 0:
        time.sleep(20)
        os._exit(0)
    context.send("forked")
    context.recv()


def _waits_for_eof(context: Context, store: str) -> Any:
    with MultiWorld() as mw:
        w = mw.sync.join("w", 0, 2, store=store)
        context.send("joined")
        with pytest.raises(PeerLost) as caught:
            w.sync.recv(torch.zeros(1), 1)
        return caught.value.how, time.monotonic()


def test_a_killed_parent_is_noticed_although_its_child_lives(store: str) -> None:
    with cluster() as c:
        parent, waiter = c.start(_forked_child_survives, store), c.start(_waits_for_eof, store)
        assert (parent.recv(), waiter.recv()) == ("forked", "joined")
        killed = time.monotonic()
        parent.kill()
        how, noticed = waiter.result()
    assert how == "eof"
    assert noticed - killed < 5  # a silent one is given ten


def _interrupt_when_waiting(w: Any) -> None:
    wait_until(lambda: any(op.since < math.inf for op in list(w.member.session.engine.operations)), 10, "nobody waits")
    wait_until(lambda: process_state(os.getpid()) == "S", 10, "the main thread does not wait")
    os.kill(os.getpid(), signal.SIGINT)


def _interrupted(context: Context, store: str, rank: int) -> Any:
    with MultiWorld() as mw:
        w = mw.sync.join("w", rank, 2, store=store)
        got = torch.zeros(1)
        if rank == 0:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            threading.Thread(target=_interrupt_when_waiting, args=(w,)).start()
            with pytest.raises(KeyboardInterrupt):
                w.sync.recv(got, 1)
            w.sync.barrier()
            w.sync.recv(got, 1)
        else:
            w.sync.barrier()
            w.sync.send(torch.ones(1), 0)
        return got.item()


def test_an_interrupted_wait_means_a_cancelled_one(store: str) -> None:
    with cluster() as c:
        first = c.start(_interrupted, store, 0)
        c.start(_interrupted, store, 1)
        assert first.result() == 1.0


def run_script(text: str, *args: str) -> str:
    """Run a Python program to its very end; what it printed."""
    done = program(text, *args)
    assert done.status == 0, done.stderr
    return done.stdout.strip()


EXIT_WITH_PENDING = """
import asyncio, math, sys, time, torch, threading
from multiworld import MultiWorld
mw = MultiWorld()
def waited_for():
    return sum(op.since < math.inf for op in list(mw["w"].member.session.engine.operations))
async def main():
    w = await mw.join("w", 0, 2, store=sys.argv[1], join_timeout=80, on_cancel="finish")
    asyncio.create_task(w.recv(torch.zeros(1), 1))
    asyncio.create_task(w.all_reduce(torch.zeros(100_000)))
    while waited_for() < 2:
        await asyncio.sleep(0)
asyncio.run(main())
threading.Thread(target=lambda: mw["w"].sync.recv(torch.zeros(1), 1), daemon=True).start()
while not waited_for():  # one that only comes when the interpreter goes is beyond help
    time.sleep(0.001)
print(time.monotonic(), flush=True)
"""


def test_exit_with_operations_pending_does_not_hang(store: str) -> None:
    with cluster() as c:
        other = c.start(_waits_for_end, store)
        done = run_script(EXIT_WITH_PENDING, store)
        assert time.monotonic() - float(done) < 10  # of which most is Python's own end
        assert other.result() in ("left", "eof")


def _waits_for_end(context: Context, store: str) -> str:
    with MultiWorld() as mw:
        w = mw.sync.join("w", 1, 2, store=store)
        with pytest.raises(PeerLost) as caught:
            w.sync.recv(torch.zeros(1), 0, tag=5)
        return caught.value.how


def test_cancelled_join_is_over_at_once_and_leaves_nothing(store: str) -> None:
    async def main() -> None:
        async with MultiWorld() as mw:
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(mw.join("w", 0, 2, store=store), 0.2)
            assert dict(mw.worlds) == {}
            w = await mw.join("alone", 0, 1, store=store)
            t = torch.ones(3)
            await w.all_reduce(t)
            await w.barrier()
            with pytest.raises(InvalidArgument):
                await mw.join("alone", 0, 1, store=store)
            with pytest.raises(InvalidArgument):
                mw["unknown"]
            await w.leave()
            with pytest.raises(WorldClosed):
                await w.barrier()

    asyncio.run(asyncio.wait_for(main(), 20))


@pytest.mark.parametrize(
    "error",
    [
        BrokenWorldException("w", "text"),
        PeerLost("w", "gone", ranks=(1, 2), how="eof", generation=3, rank=0, operation="recv"),
        OpTimeout("w", "late", timeout=2.5),
        RendezvousError("w", "nobody"),
        WrongContext("w", "fork"),
    ],
)
def test_errors_survive_pickling(error: MultiWorldError) -> None:
    again = pickle.loads(pickle.dumps(error))  # noqa: S301 - our own
    assert type(again) is type(error)
    assert again.__dict__ == error.__dict__
    assert str(again) == str(error)
