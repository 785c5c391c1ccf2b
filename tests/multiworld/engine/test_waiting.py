"""Who waits for an operation moves the data: threads and loops that share the lead, signals, the end of all."""

from __future__ import annotations

import asyncio
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from engine.pairs import (
    DONE,
    ENDED,
    PENDING,
    SECONDS,
    Two,
    exchange,
    frame,
    recv,
    send,
    start_recv,
    start_send,
)
from procs import open_numbers

from tests.multiworld.engine.reference.frames import HEADER, Kind


def test_who_waits_for_what_another_thread_withdraws_goes_on(two: Two) -> None:
    got = torch.zeros(1)
    number = start_recv(two.b, 0, 7, got)
    threading.Timer(0.2, two.b.withdraw, (number,)).start()
    assert two.run(lambda: two.b.wait(number, SECONDS)[0]) == [PENDING]


def test_a_wait_ends_at_its_deadline_and_the_operation_goes_on(two: Two) -> None:
    got = torch.zeros(1)
    number = start_recv(two.b, 0, 7, got)
    began = time.monotonic()
    assert two.b.wait(number, 1.2)[0] == PENDING
    assert time.monotonic() - began >= 1.2, "to look around for signals ends no wait"
    assert two.run(lambda: send(two.a, 1, 7, torch.ones(1), SECONDS), lambda: two.b.wait(number, SECONDS))[1][0] == DONE
    assert got.item() == 1.0


def test_threads_that_wait_at_once_pass_the_lead_on(two: Two) -> None:
    got = [torch.zeros(1) for _ in range(8)]
    receives = [lambda key=key: recv(two.b, 0, key, got[key], SECONDS)[0] for key in range(8)]
    sends = [lambda key=key: send(two.a, 1, key, torch.tensor([float(key)]), SECONDS)[0] for key in reversed(range(8))]
    assert two.run(*receives, *sends) == [DONE] * 16
    assert [value.item() for value in got] == list(map(float, range(8)))


def test_an_event_loop_awaits_many_operations(two: Two) -> None:
    async def served(engine: Any, numbers: list[int]) -> None:
        loop, open_ones = asyncio.get_running_loop(), {}

        def move() -> None:
            for number in engine.progress():
                open_ones.pop(number).set_result(None)

        loop.add_reader(engine.readable(), move)
        for number in numbers:
            if engine.notify(number):
                open_ones[number] = loop.create_future()
        await asyncio.wait_for(asyncio.gather(*open_ones.values()), SECONDS)
        loop.remove_reader(engine.readable())

    got = [torch.zeros(1) for _ in range(64)]
    receives = [start_recv(two.b, 0, 7, one) for one in got]
    sent = [torch.tensor([float(i)]) for i in range(64)]
    sends = [start_send(two.a, 1, 7, one) for one in sent]
    two.run(lambda: asyncio.run(served(two.a, sends)), lambda: asyncio.run(served(two.b, receives)))
    assert [two.b.outcome(number)[0] for number in receives] == [DONE] * 64
    assert [one.item() for one in got] == list(map(float, range(64)))


@pytest.mark.parametrize("idle", [True, False])
def test_what_comes_at_once_leaves_turns_to_others_of_the_loop(two: Two, idle: bool) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        turn = ((), ours.fileno()) if idle else ((None,), -1)
        two.a.readable()
        for _ in range(2):
            outcomes, numbers = [], []
            while not outcomes or outcomes[-1] == DONE:
                start_recv(two.b, 0, 7, torch.zeros(1))  # the post is in the socket
                numbers.append([0])
                outcomes.append(two.a.begin(numbers[-1], False, 1, 7, torch.ones(1), None, *turn))
                assert len(outcomes) < 100
            assert (len(outcomes), outcomes[-1]) == (17, PENDING)
            assert two.a.progress() == numbers[-1]  # it is told, and the next ones may be looked for again


def test_a_task_goes_on_in_the_callback_that_ends_what_it_alone_awaits(two: Two) -> None:
    async def order(awaits: int) -> tuple[bool, list[str]]:
        loop, order = asyncio.get_running_loop(), []
        future = loop.create_future()

        async def go_on() -> None:
            await future
            order.append("the task")

        def end() -> None:
            went = two.a.go_on(future)
            order.append("the callback")
            told.set_result(went)

        tasks = [loop.create_task(go_on()) for _ in range(awaits)]
        await asyncio.sleep(0)
        told = loop.create_future()
        loop.call_soon(end)
        went = await told
        if not went:
            future.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return went, order

    assert asyncio.run(order(1)) == (True, ["the task", "the callback"])
    for awaits in (0, 2):
        assert asyncio.run(order(awaits)) == (False, ["the callback"])


PYTHON_S_FUTURES = """
import asyncio, torch, multiworld._engine, multiworld.tensors.checks
engine = multiworld._engine.Engine(0, {}, 1 << 20)

async def main():
    loop = asyncio.get_running_loop()
    for _ in range(100):
        future = asyncio.futures._PyFuture(loop=loop)
        async def awaits():
            await future
        task = asyncio.tasks._PyTask(awaits(), loop=loop)
        await asyncio.sleep(0)
        loop.call_soon(engine.go_on, future)
        await task

asyncio.run(main())
"""


def test_a_task_of_python_goes_on_too() -> None:
    """Such futures give the list that they have; freed memory is overwritten here."""
    env = {**os.environ, "PYTHONMALLOC": "debug"}
    ended = subprocess.run(
        [sys.executable, "-c", PYTHON_S_FUTURES], env=env, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 0, ended.stderr


def readable(engine: Any, seconds: float = 0.0) -> bool:
    """Tell whether an event loop would have something to do."""
    return bool(select.select([engine.readable()], [], [], seconds)[0])


def received_in_a_thread(bare: Two) -> None:
    """Receive one message with the call of a thread that waits, and let the next frame come then."""
    bare.peer.settimeout(SECONDS)
    got = torch.zeros(1)
    number = start_recv(bare.a, 1, 7, got)
    seq = HEADER.unpack(bare.peer.recv(HEADER.size))[3]
    bare.peer.sendall(frame(Kind.DATA, dtype=7, seq=seq, key=7, nbytes=4) + bytes(4))
    assert bare.a.wait(number, SECONDS)[0] == DONE
    bare.a.take(number)
    bare.peer.sendall(frame(Kind.POST, dtype=7, seq=1, key=8, nbytes=4))


def test_a_loop_is_left_in_peace_where_threads_wait_and_listens_again_when_none_does(bare: Two) -> None:
    assert not readable(bare.a)
    for _ in range(100):  # the guard may find a moment of this process in which nobody waits
        received_in_a_thread(bare)
        if not readable(bare.a):
            break
        bare.a.progress()
    else:
        raise AssertionError("the loop is woken by what comes for a thread")
    until = time.monotonic() + SECONDS
    while not readable(bare.a, 0.02):  # what comes before that is the guard's
        assert time.monotonic() < until
        bare.peer.sendall(frame(Kind.POST, dtype=7, seq=1, key=8, nbytes=4))


@pytest.mark.parametrize("thread_first", [False, True])
def test_a_loop_that_awaits_something_listens_though_threads_wait_now_and_then(bare: Two, thread_first: bool) -> None:
    assert not readable(bare.a)
    bare.peer.settimeout(SECONDS)
    got = torch.zeros(1)
    for key in range(9, 29):
        if thread_first:
            received_in_a_thread(bare)
        number = start_recv(bare.a, 1, key, got)
        assert bare.a.notify(number)
        bare.peer.recv(HEADER.size)
        if thread_first:
            bare.peer.sendall(frame(Kind.POST, dtype=7, seq=1, key=8, nbytes=4))
        else:
            received_in_a_thread(bare)
        assert readable(bare.a)
        bare.a.progress()
        bare.a.withdraw(number)
        bare.peer.recv(HEADER.size)


def test_what_a_thread_completes_for_a_loop_is_told(bare: Two) -> None:
    assert not readable(bare.a)
    got = torch.zeros(2)
    awaited, number = start_recv(bare.a, 1, 9, got[:1]), start_recv(bare.a, 1, 7, got[1:])
    posted = [HEADER.unpack(bare.peer.recv(HEADER.size)) for _ in range(2)]
    assert bare.a.notify(awaited)
    for _, _, _, seq, key, _ in posted:
        bare.peer.sendall(frame(Kind.DATA, dtype=7, seq=seq, key=key, nbytes=4) + bytes(4))
    assert bare.a.wait(number, SECONDS)[0] == DONE
    assert readable(bare.a, SECONDS)
    assert bare.a.progress() == [awaited]
    assert not readable(bare.a)


@pytest.mark.parametrize("call", [recv, lambda engine, peer, _, *rest: exchange(engine, True, peer, *rest)])
def test_a_signal_handler_that_raises_ends_the_wait_and_its_operation(two: Two, call: Callable[..., Any]) -> None:
    class HandlerError(Exception):
        pass

    def handler(*_: object) -> None:
        raise HandlerError

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        with pytest.raises(HandlerError):
            call(two.b, 0, 7, torch.zeros(1), SECONDS)
    finally:
        signal.signal(signal.SIGUSR1, before)
    ends = two.run(
        lambda: send(two.a, 1, 7, torch.ones(1), SECONDS), lambda: recv(two.b, 0, 7, torch.zeros(1), SECONDS)
    )
    assert [end[0] for end in ends] == [DONE, DONE]


def test_a_signal_handler_that_returns_ends_no_wait(two: Two) -> None:
    came: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: came.append(number))
    try:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        threading.Timer(0.5, lambda: send(two.a, 1, 7, torch.ones(1), SECONDS)).start()
        assert recv(two.b, 0, 7, torch.zeros(1), SECONDS)[0] == DONE
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert came == [signal.SIGUSR1]


def test_a_signal_that_interrupts_no_call_of_the_waiting_thread_is_seen(two: Two) -> None:
    class HandlerError(Exception):
        pass

    def handler(*_: object) -> None:
        raise HandlerError

    over = threading.Event()
    other = threading.Thread(target=over.wait, daemon=True)
    other.start()
    assert other.ident is not None
    before = signal.signal(signal.SIGUSR1, handler)
    try:  # the other thread takes the signal; Python's handler runs in this one, once it looks
        threading.Timer(0.2, signal.pthread_kill, (other.ident, signal.SIGUSR1)).start()
        with pytest.raises(HandlerError):
            recv(two.b, 0, 7, torch.zeros(1), SECONDS)
    finally:
        signal.signal(signal.SIGUSR1, before)
        over.set()


@pytest.mark.parametrize("orderly", [False, True])
def test_the_end_of_a_world_ends_every_wait(two: Two, orderly: bool) -> None:
    waits = [lambda key=key: recv(two.b, 0, key, torch.zeros(1), SECONDS)[0] for key in range(3)]
    threading.Timer(0.2, two.b.end, (orderly,)).start()
    assert two.run(*waits) == [ENDED] * 3
    assert recv(two.b, 0, 7, torch.zeros(1), SECONDS)[0] == ENDED


def test_who_moves_the_data_is_woken_without_a_descriptor(two: Two) -> None:
    begun = threading.Event()
    number = start_recv(two.b, 0, 7, torch.zeros(1))

    def wait() -> Any:
        begun.set()
        return two.b.wait(number, SECONDS)

    def end() -> list[int]:
        begun.wait()
        time.sleep(0.2)  # it moves the data by then, most likely
        before = open_numbers()
        two.b.end(False)
        return sorted(set(open_numbers()) - set(before))

    ended, made = two.run(wait, end)
    assert ended[0] == ENDED
    assert not made


WAITING_TO_THE_END = """
import socket, threading, torch
from multiworld.engine import library
ours, theirs = socket.socketpair()
engine = library.module().Engine(0, {1: ours.detach()}, 1 << 20)
begun, got = threading.Barrier(5), torch.zeros(1)
def wait():
    begun.wait()
    while True:
        number = engine.start((True, False, 1, 7, 0, 0, 4, got.data_ptr(), None))
        engine.wait(number, 0.0003)
        engine.withdraw(number)
for _ in range(4):
    threading.Thread(target=wait, daemon=True).start()
begun.wait()
"""


def test_a_thread_that_waits_when_the_interpreter_ends_does_not_abort_the_process() -> None:
    ended = subprocess.run([sys.executable, "-c", WAITING_TO_THE_END], capture_output=True, text=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, "")
