"""A signal handler may raise between any two steps, as Ctrl-C does in the main thread: no stream is torn by it."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
import torch
from interrupts import EXCHANGING, STARTING, WAITING, interrupted_at
from table import members

from multiworld import WorldClosed
from multiworld.matching.protocol import message_key
from multiworld.operations import p2p
from multiworld.operations.p2p import P2P
from multiworld.tensors import memory_check

SECONDS = 10.0
COUNT = 1_000
#: steps of the interpreter from one interrupt to the next; a number that loops are not likely to have
STRIDE = 13
MOST_STEPS = 4_000


def is_free(lock: Any) -> bool:
    """Tell whether another thread can have the lock."""
    had: bool = lock.acquire(timeout=SECONDS)
    if had:
        lock.release()
    return had


@pytest.mark.parametrize("watched", ["", "profiler", "debug memory"])
@pytest.mark.parametrize("step", [0, 60])
def test_a_start_that_is_interrupted_leaves_nothing_behind(
    store: str, step: int, watched: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_check, "ACTIVE", watched == "debug memory")  # as MULTIWORLD_DEBUG_MEMORY does
    profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
    with members(store, 2) as ((first, _), pool), profiler if watched == "profiler" else contextlib.nullcontext():
        batch = [P2P("recv", torch.zeros(COUNT), 1, tag) for tag in range(2)]
        assert interrupted_at(step, STARTING, lambda: first.sync.batch_p2p(batch))  # in the middle of its start
        assert pool.submit(is_free, first.member.session.lock).result(), "it holds the lock"
        assert not first.member.session.engine.operations
        assert isinstance(first.failure, WorldClosed)


def test_a_wait_that_is_interrupted_before_it_waits_is_withdrawn(store: str) -> None:
    with members(store, 2) as ((first, _), _):
        got = torch.zeros(COUNT)
        assert interrupted_at(0, WAITING, lambda: first.sync.recv(got, 1))
        assert not first.member.session.engine.operations
        assert first.failure is None


@pytest.mark.timeout(120)
@pytest.mark.parametrize("awaited", [False, True])
def test_an_interrupted_exchange_loses_no_message_and_doubles_none(store: str, awaited: bool) -> None:
    with contextlib.closing(asyncio.new_event_loop()) as loop, members(store, 2) as ((first, second), pool):

        def receive(got: torch.Tensor) -> Any:
            return loop.run_until_complete(first.recv(got, 1)) if awaited else first.sync.recv(got, 1)

        engine, key = first.member.session.engine, message_key(first.gid, 0)
        kept = hit = 0
        for step in range(MOST_STEPS):
            sending = pool.submit(second.sync.send, torch.full((COUNT,), float(step)), 0)
            got = torch.full((COUNT,), -1.0)
            hit = interrupted_at(step, EXCHANGING, lambda got=got: receive(got))
            if hit and (got[0] != step or engine.native.keeps(1, key)):
                kept += bool(got[0] == step)
                assert receive(got) == 1
            sending.result(SECONDS)
            assert torch.equal(got, torch.full((COUNT,), float(step)))
            assert not engine.operations
            if not hit:
                break
        assert not hit, "not every step was tried"
        assert kept, "no interrupt came between the message and its receiver"
        assert first.failure is second.failure is None


@pytest.mark.timeout(120)
def test_an_interrupt_as_a_loop_moves_data_loses_no_end(tmp_path: Path) -> None:
    broke = 0
    for step in range(0, MOST_STEPS, STRIDE):
        with members(f"file://{tmp_path}/{step}", 2) as ((first, second), pool):
            loop, got = asyncio.new_event_loop(), torch.zeros(COUNT)
            loop.set_exception_handler(lambda *_: None)  # nobody asks an interrupted ``wait_for`` for its exception
            task = loop.create_task(first.recv(got, 1))
            loop.run_until_complete(asyncio.sleep(0))  # it waits
            p2p.send(second.member.session.engine, second, torch.ones(COUNT), 0, 0)
            second.member.session.bridge.drain(0)

            def ends(loop: asyncio.AbstractEventLoop = loop, task: asyncio.Task[int] = task) -> Any:
                with contextlib.suppress(WorldClosed):
                    return loop.run_until_complete(asyncio.wait_for(task, SECONDS))

            hit = interrupted_at(step, (*STARTING, *WAITING), ends)
            with contextlib.suppress(KeyboardInterrupt):  # which came as the task had its result
                ends()
            assert task.done()
            assert pool.submit(is_free, first.member.session.lock).result(), "it holds the lock"
            assert first.failure is None or isinstance(first.failure, WorldClosed)
            broke += first.failure is not None
            loop.close()
            if not hit:
                break
    assert not hit, "not every step was tried"
    assert broke
