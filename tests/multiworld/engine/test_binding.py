"""Two compiled engines of one process, joined by a socket pair: what callers, loops and owners see of them."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from engine.conftest import see_plain

from multiworld.matching.protocol import CODES, Mode
from multiworld.transport.descriptors import open_numbers
from tests.multiworld.engine.reference.frames import HEADER, Kind

SECONDS = 30.0
PENDING, DONE, MISMATCH, ENDED = range(4)
LOST, LANE_ENDED, BYE, VALUE, OWED = range(5)


class Two:
    """Engines 0 and 1, or engine 0 and a bare socket in the place of its peer."""

    def __init__(self, native: ModuleType, *, bare: bool = False) -> None:
        ours, theirs = socket.socketpair()
        self.lane = ours.detach()
        self.a = native.Engine(0, {1: self.lane}, 1 << 20)
        self.peer = theirs if bare else None
        self.b = None if bare else native.Engine(1, {0: theirs.detach()}, 1 << 20)

    def run(self, *functions: Callable[[], Any]) -> list[Any]:
        """Run each in a thread of its own; what they return."""
        results: list[Any] = [None] * len(functions)

        def work(place: int) -> None:
            results[place] = functions[place]()

        threads = [threading.Thread(target=work, args=(place,), daemon=True) for place in range(len(functions))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SECONDS)
            assert not thread.is_alive()
        return results


@pytest.fixture
def two(native: ModuleType) -> Iterator[Two]:
    made = Two(native)
    yield made
    made.a.end(False)
    made.b.end(False)


@pytest.fixture
def bare(native: ModuleType) -> Iterator[Two]:
    made = Two(native, bare=True)
    yield made
    made.a.end(False)
    made.peer.close()


def start_send(engine: Any, peer: int, key: int, tensor: torch.Tensor) -> int:
    return engine.start((False, False, peer, key, 0, CODES[tensor.dtype], tensor.nbytes, tensor.data_ptr(), None))  # type: ignore[no-any-return]


def start_recv(engine: Any, peer: int, key: int, tensor: torch.Tensor) -> int:
    return engine.start((True, False, peer, key, 0, CODES[tensor.dtype], tensor.nbytes, tensor.data_ptr(), None))  # type: ignore[no-any-return]


def send(engine: Any, peer: int, key: int, tensor: torch.Tensor, seconds: float) -> Any:
    return _over(engine, start_send(engine, peer, key, tensor), seconds)


def recv(engine: Any, peer: int, key: int, tensor: torch.Tensor, seconds: float) -> Any:
    return _over(engine, start_recv(engine, peer, key, tensor), seconds)


def _over(engine: Any, number: int, seconds: float) -> Any:
    """The outcome of an operation; one that is late is withdrawn."""
    outcome = engine.wait(number, seconds)
    engine.take(number)
    engine.withdraw(number)
    return outcome


def frame(kind: int, dtype: int = 0, flags: int = 0, seq: int = 0, key: int = 0, nbytes: int = 0) -> bytes:
    return HEADER.pack(kind, dtype, flags, seq, key, nbytes)


def events_of(engine: Any) -> list[tuple[Any, ...]]:
    """The events of an engine whose lanes have been moved, at least one."""
    assert select.select([engine.eventful()], [], [], SECONDS)[0]
    return engine.events()  # type: ignore[no-any-return]


@pytest.mark.parametrize("count", [0, 1, 1000, 300_000, 5_000_000])
def test_a_message_arrives_whole(two: Two, count: int) -> None:
    sent, got = torch.arange(count, dtype=torch.float32), torch.full((count,), -1.0)
    ends = two.run(lambda: send(two.a, 1, 7, sent, SECONDS), lambda: recv(two.b, 0, 7, got, SECONDS))
    assert [end[0] for end in ends] == [DONE, DONE]
    assert torch.equal(sent, got)


def test_messages_of_one_key_keep_their_order_and_keys_do_not_wait_for_each_other(two: Two) -> None:
    sent = {key: [torch.tensor([float(key * 10 + i)]) for i in range(3)] for key in (1, 2)}
    numbers = {key: [start_send(two.a, 1, key, one) for one in sent[key]] for key in sent}
    for key in (2, 1):
        for number, expected in zip(numbers[key], sent[key], strict=True):
            got = torch.zeros(1)
            ends = two.run(
                lambda got=got, key=key: recv(two.b, 0, key, got, SECONDS),
                lambda number=number: two.a.wait(number, SECONDS),
            )
            assert [end[0] for end in ends] == [DONE, DONE]
            assert torch.equal(got, expected)


def test_other_lengths_and_dtypes_are_a_mismatch_for_both_and_the_world_goes_on(two: Two) -> None:
    ends = two.run(
        lambda: send(two.a, 1, 7, torch.zeros(2), SECONDS), lambda: recv(two.b, 0, 7, torch.zeros(3), SECONDS)
    )
    assert [(end[0], end[4]) for end in ends] == [(MISMATCH, 12), (MISMATCH, 8)]
    test_a_message_arrives_whole(two, 10)


@pytest.mark.parametrize(
    "unusual",
    [
        torch.zeros(4, 4).t(),
        torch.zeros(2, dtype=torch.complex64).conj(),
        torch.zeros(2, device="meta"),
        torch.zeros(2).to_sparse(),
        torch.zeros(1).as_subclass(type("Own", (torch.Tensor,), {})),
    ],
    ids=["strides", "conjugate", "meta", "sparse", "subclass"],
)
def test_what_is_not_plain_is_left_to_python(two: Two, unusual: torch.Tensor) -> None:
    assert exchange(two.a, False, 1, unusual, SECONDS) == (None, 0)
    assert exchange(two.a, True, 1, unusual, SECONDS) == (None, 0)


def test_what_is_plain_needs_no_check_of_pythons(two: Two) -> None:
    sent, got = torch.nn.Parameter(torch.tensor([3.0])), torch.zeros(2, 1)[1]
    for tensor in (sent, got):
        see_plain(tensor)
    two.run(lambda: exchange(two.a, False, 1, sent, SECONDS), lambda: exchange(two.b, True, 0, got, SECONDS))
    assert got.item() == 3.0


@pytest.mark.parametrize("receives", [False, True])
def test_memory_that_is_not_there_is_left_to_python(two: Two, receives: bool) -> None:
    resized = torch.zeros(100)
    resized.untyped_storage().resize_(8)
    assert exchange(two.a, receives, 1, resized, SECONDS) == (None, 0)


def test_memory_that_may_be_read_only_is_left_to_python(two: Two) -> None:
    foreign = torch.frombuffer(bytearray(8), dtype=torch.uint8)
    assert exchange(two.a, True, 1, foreign, SECONDS) == (None, 0)
    assert exchange(two.a, False, 1, foreign, 0.0)[0] == PENDING


def test_a_withdrawn_receive_leaves_its_message_for_the_next(two: Two) -> None:
    first, second = torch.zeros(1), torch.zeros(1)
    two.b.withdraw(start_recv(two.b, 0, 7, first))
    ends = two.run(lambda: send(two.a, 1, 7, torch.tensor([5.0]), SECONDS), lambda: recv(two.b, 0, 7, second, SECONDS))
    assert [end[0] for end in ends] == [DONE, DONE]
    assert (first.item(), second.item()) == (0.0, 5.0)


def test_memory_of_a_withdrawn_send_is_the_callers_and_the_message_arrives_unchanged(two: Two) -> None:
    sent, got = torch.ones(5_000_000), torch.zeros(5_000_000)
    receive = start_recv(two.b, 0, 7, got)
    assert select.select([two.a.readable()], [], [], SECONDS)[0]
    two.a.progress()  # the post is there: the send is matched, and does not fit into the socket
    two.a.withdraw(start_send(two.a, 1, 7, sent))
    sent.fill_(9.0)
    assert two.b.wait(receive, SECONDS)[0] == DONE  # the guard writes it
    assert torch.equal(got, torch.ones(5_000_000))


def test_a_wait_ends_at_its_deadline_and_the_operation_goes_on(two: Two) -> None:
    got = torch.zeros(1)
    number = start_recv(two.b, 0, 7, got)
    began = time.monotonic()
    assert two.b.wait(number, 1.2)[0] == PENDING
    assert time.monotonic() - began >= 1.2, "to look around for signals ends no wait"
    assert two.run(lambda: send(two.a, 1, 7, torch.ones(1), SECONDS), lambda: two.b.wait(number, SECONDS))[1][0] == DONE
    assert got.item() == 1.0


def test_a_whole_call_that_is_too_late_is_withdrawn(two: Two) -> None:
    late, again = torch.zeros(1), torch.zeros(1)
    assert recv(two.b, 0, 7, late, 0.05)[0] == PENDING
    ends = two.run(lambda: send(two.a, 1, 7, torch.ones(1), SECONDS), lambda: recv(two.b, 0, 7, again, SECONDS))
    assert [end[0] for end in ends] == [DONE, DONE]
    assert (late.item(), again.item()) == (0.0, 1.0)


def exchange(engine: Any, receives: bool, peer: int, tensor: torch.Tensor, seconds: float) -> tuple[Any, int]:
    """Exchange a message of key 7; its outcome and number."""
    number = [0]
    return engine.exchange(number, receives, peer, 7, tensor, None, seconds), number[0]


def test_a_message_is_exchanged_in_one_call_of_each(two: Two) -> None:
    got = torch.zeros(3)
    sent, received = two.run(
        lambda: exchange(two.a, False, 1, torch.ones(3), SECONDS), lambda: exchange(two.b, True, 0, got, SECONDS)
    )
    assert (sent[0], received[0]) == (DONE, DONE)
    assert got.sum() == 3.0
    assert two.b.outcome(received[1])[0] == DONE, "its number is the caller's until it is taken"


def test_an_exchange_that_is_late_or_refused_goes_on_under_its_number(two: Two) -> None:
    done, number = exchange(two.a, False, 1, torch.ones(3), 0.01)
    assert done == PENDING
    assert two.a.outcome(number)[0] == PENDING
    (outcome, *_), (done, other) = two.run(
        lambda: two.a.wait(number, SECONDS), lambda: exchange(two.b, True, 0, torch.zeros(4), SECONDS)
    )
    assert (outcome, done, two.b.outcome(other)[0]) == (MISMATCH, MISMATCH, MISMATCH)


@pytest.mark.parametrize("over", ["a farewell", "an end"])
def test_nothing_is_exchanged_after(bare: Two, over: str) -> None:
    if over == "a farewell":
        bare.a.bye(False)
        assert bare.peer.recv(1 << 16)
    else:
        bare.a.end(True)
    assert exchange(bare.a, True, 1, torch.zeros(1), SECONDS) == (None, 0)
    with pytest.raises(BlockingIOError):
        bare.peer.recv(1, socket.MSG_DONTWAIT)


def test_a_message_that_came_and_is_not_taken_can_be_given_back(two: Two) -> None:
    first, second = torch.zeros(1), torch.zeros(1)
    number = start_recv(two.b, 0, 7, first)
    ends = two.run(lambda: send(two.a, 1, 7, torch.ones(1), SECONDS), lambda: two.b.wait(number, SECONDS))
    assert [end[0] for end in ends] == [DONE, DONE]
    two.b.withdraw(number)
    assert recv(two.b, 0, 7, second, SECONDS)[0] == DONE
    assert second.item() == 1.0


def test_a_message_of_the_senders_length_comes_in_memory_that_outlives_the_engine(native: ModuleType) -> None:
    two = Two(native)
    a, b = two.a, two.b
    limit, text = 1 << 20, b"x" * 1_000_000
    number = b.start((True, False, 0, 7, int(Mode.OBJECT), 0, limit, None, None))
    a.start((False, False, 1, 7, int(Mode.OBJECT), 0, len(text) + 3, text, b"end"))
    two.run(lambda: _moved(a, lambda: b.outcome(number)[0] == DONE), lambda: b.wait(number, SECONDS))
    keeper, _, (address, length) = b.received(number)
    b.take(number)
    with pytest.raises(ValueError, match="nothing was received"):
        b.received(number)
    two.a = two.b = a = b = None
    assert ctypes.string_at(address, length) == text + b"end"
    del keeper


def _moved(engine: Any, over: Callable[[], bool]) -> None:
    """Move the data of an engine, as an event loop does."""
    until = time.monotonic() + SECONDS
    while not over():
        select.select([engine.readable()], [], [], 0.05)
        engine.progress()
        assert time.monotonic() < until


@pytest.fixture
def packets(native: ModuleType) -> Iterator[tuple[Any, socket.socket]]:
    """An engine, and the socket of its peer, which keeps apart what is written apart."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    engine = native.Engine(0, {1: ours.detach()}, 1 << 20)
    with theirs:
        theirs.settimeout(SECONDS)
        yield engine, theirs
    engine.end(False)


def posts(got: torch.Tensor) -> list[Any]:
    """Make receives of one element each."""
    return [(True, False, 1, key, 0, CODES[got.dtype], 4, got[key:].data_ptr(), None) for key in range(len(got))]


@pytest.mark.parametrize(("count", "writes"), [(1, [1]), (5, [5]), (20, [8, 8, 4])])
def test_messages_that_are_started_together_go_out_together(
    packets: tuple[Any, socket.socket], count: int, writes: list[int]
) -> None:
    """A long batch does not keep the peer waiting."""
    engine, theirs = packets
    got = torch.zeros(count)
    assert len(set(engine.start_all(posts(got)))) == count
    assert [len(theirs.recv(1_000)) // HEADER.size for _ in writes] == writes


def test_what_is_held_goes_out_before_a_payload(packets: tuple[Any, socket.socket]) -> None:
    engine, theirs = packets
    got, sent = torch.zeros(2), torch.ones(1)
    theirs.send(HEADER.pack(Kind.POST, CODES[sent.dtype], 0, 1, 7, 4))
    engine.drain(1)
    engine.start_all([*posts(got), (False, False, 1, 7, 0, CODES[sent.dtype], 4, sent.data_ptr(), None)])
    assert [len(theirs.recv(1_000)) for _ in range(2)] == [2 * HEADER.size, HEADER.size + 4]


def test_answers_to_what_came_together_go_out_together(packets: tuple[Any, socket.socket]) -> None:
    engine, theirs = packets
    sent = torch.ones(3)
    for key in range(3):
        engine.start((False, False, 1, key, 0, CODES[sent.dtype], 4, sent[key:].data_ptr(), None))
    theirs.send(b"".join(HEADER.pack(Kind.POST, CODES[sent.dtype], 0, key, key, 8) for key in range(3)))
    engine.drain(1)
    assert len(theirs.recv(1_000)) == 3 * HEADER.size, "three refusals of another length"


def test_what_is_started_alone_is_not_held(packets: tuple[Any, socket.socket]) -> None:
    engine, theirs = packets
    got = torch.zeros(2)
    for post in posts(got):
        engine.start(post)
    assert [len(theirs.recv(1_000)) for _ in range(2)] == [HEADER.size, HEADER.size]


def test_what_an_operation_waits_for_is_known(two: Two) -> None:
    sent = torch.ones(1)
    number = start_send(two.a, 1, 7, sent)
    assert two.a.awaited(number) == [False, 1]
    assert two.a.needs(1)
    assert not two.a.withdraw(number)
    assert two.a.awaited(number) == [False]
    assert not two.a.needs(1)


def test_what_was_sent_arrives_after_an_orderly_end(two: Two) -> None:
    got = torch.zeros(5_000_000)
    number = start_recv(two.b, 0, 7, got)
    ours = torch.ones(5_000_000)
    start_send(two.a, 1, 7, ours)
    two.a.drain(1)  # the post is there: half of the message is out
    two.a.bye(False)
    two.a.end(True)

    over = threading.Event()

    def lingers() -> None:
        until = time.monotonic() + SECONDS
        while not two.a.linger():
            assert time.monotonic() < until
        over.set()

    assert two.run(lingers, lambda: _moved(two.b, over.is_set))
    assert two.b.outcome(number)[0] == DONE
    assert got.sum() == 5_000_000
    assert events_of(two.b)[0][0] == BYE
    sent, _ = two.a.traffic()[1]
    _, received = two.b.traffic()[0]
    assert sent == received > 20_000_000


def test_a_peer_that_is_none_is_an_error(two: Two) -> None:
    with pytest.raises(ValueError, match="no such peer"):
        start_send(two.a, 5, 7, torch.zeros(1))


def test_who_waits_for_what_another_thread_withdraws_goes_on(two: Two) -> None:
    got = torch.zeros(1)
    number = start_recv(two.b, 0, 7, got)
    threading.Timer(0.2, two.b.withdraw, (number,)).start()
    assert two.run(lambda: two.b.wait(number, SECONDS)[0]) == [PENDING]


def test_a_world_that_ends_in_order_can_be_cut(bare: Two) -> None:
    payload = bytes(1 << 22)
    bare.peer.sendall(frame(Kind.POST, 0, int(Mode.OBJECT), 1, 7, 1 << 30))
    assert bare.a.drain(1)
    bare.a.start((False, False, 1, 7, int(Mode.OBJECT), 0, len(payload), payload, None))
    bare.a.end(True)
    assert not bare.a.linger(), "what was sent still goes out"
    bare.a.end(False)
    assert bare.a.linger()


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
    test_a_message_arrives_whole(two, 1)


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


def test_the_end_of_a_lane_is_told(bare: Two) -> None:
    got = torch.zeros(1)
    number = start_recv(bare.a, 1, 7, got)
    assert len(bare.peer.recv(100)) == HEADER.size  # what is not read would make it a reset
    bare.peer.close()
    bare.a.progress()
    assert events_of(bare.a) == [(LANE_ENDED, 1, 0, 0, b"")]
    assert bare.a.wait(number, 0.01)[0] == PENDING, "why it ended is for the owner to find out"


@pytest.mark.parametrize(
    "frames",
    [
        frame(99),
        frame(Kind.DATA, seq=5, nbytes=8),
        frame(Kind.CANCELLED, seq=1),
        frame(Kind.VALUE, nbytes=1 << 40),
        (frame(Kind.VALUE, nbytes=1 << 20) + bytes(1 << 20)) * 60,
        frame(Kind.BYE) * 2,
        frame(Kind.FINGERPRINT, flags=3, nbytes=3),
        frame(Kind.FINGERPRINT, flags=24, nbytes=1 << 50),
        frame(Kind.POST, flags=Mode.FIXED, nbytes=8) * 70_000,
    ],
    ids=["kind", "data", "cancelled", "value", "values", "farewells", "fingerprint", "length", "posts"],
)
def test_hostile_frames_end_the_lane_with_a_word(bare: Two, frames: bytes) -> None:
    got = torch.zeros(1)
    start_recv(bare.a, 1, 7, got)
    bare.peer.settimeout(SECONDS)

    def write() -> None:
        with contextlib.suppress(OSError):  # nobody reads the rest
            bare.peer.sendall(frames)

    threading.Thread(target=write, daemon=True).start()
    lost: list[tuple[Any, ...]] = []
    while not lost:
        if select.select([bare.a.readable()], [], [], 1.0)[0]:
            bare.a.progress()  # its owner is busy: it takes no event as long as something comes
        else:
            lost += [event for event in bare.a.events() if event[0] == LOST]
    assert (lost[0][1], bool(lost[0][4])) == (1, True)


def test_a_farewell_is_told_and_what_it_leaves_behind_ends_by_the_owner(bare: Two) -> None:
    bare.peer.sendall(frame(Kind.BYE, flags=1))
    bare.a.progress()
    assert events_of(bare.a) == [(BYE, 1, 1, 0, b"")]


@pytest.mark.parametrize("state", ["idle", "pending", "waiting", "backlog"])
def test_a_forked_child_holds_no_connection_and_is_told_that_it_is_no_member(bare: Two, state: str) -> None:
    memory = torch.zeros(5_000_000)
    number = start_recv(bare.a, 1, 7, memory) if state in {"pending", "waiting"} else None
    if state == "waiting":  # in the middle of its wait, with the lead
        threading.Thread(target=bare.a.wait, args=(number, SECONDS), daemon=True).start()
    if state == "backlog":
        bare.peer.sendall(frame(Kind.POST, dtype=7, seq=1, key=7, nbytes=memory.nbytes))
        assert select.select([bare.a.readable()], [], [], SECONDS)[0]
        bare.a.progress()
        start_send(bare.a, 1, 7, memory)
    descriptors = {fd: _file_at(fd) for fd in (bare.a.readable(), bare.a.eventful(), bare.lane)}
    child = os.fork()
    if not child:
        os._exit(_look_in_child(bare, memory, descriptors))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    bare.a.end(False)


def _file_at(descriptor: int) -> str | None:
    """What is open at a number; sockets and pipes are told from others of their kind."""
    with contextlib.suppress(OSError):
        return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115 - it leads to no path
    return None


def _look_in_child(bare: Two, memory: torch.Tensor, descriptors: dict[int, str | None]) -> int:
    """Return 0 if nothing is open and nothing may be called, or the number of the first call that may be.

    A number may be taken by now: other libraries open files when a process forks.
    """
    calls = (bare.a.progress, bare.a.traffic, bare.a.readable, lambda: recv(bare.a, 1, 7, memory, SECONDS))
    for number, call in enumerate(calls, 1):
        try:
            call()
        except RuntimeError:
            continue
        return number
    return -any(_file_at(descriptor) == file for descriptor, file in descriptors.items())


def test_a_lane_that_cannot_be_watched_is_an_error_and_stays_the_callers(native: ModuleType, tmp_path: Path) -> None:
    with (tmp_path / "file").open("wb") as file:  # epoll takes none
        with pytest.raises(PermissionError):
            native.Engine(0, {1: file.fileno()}, 1 << 20)
        os.fstat(file.fileno())


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


def test_without_descriptors_there_is_an_error_and_none_is_kept(native: ModuleType) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    ours, theirs = socket.socketpair()
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(open_numbers()) + 4, hard))
    taken: list[int] = []
    try:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.open("/dev/null", os.O_RDONLY))
        os.close(taken.pop())  # of the two that an engine needs
        for _ in range(2):
            with pytest.raises(OSError, match="Too many open files"):
                native.Engine(0, {1: ours.fileno()}, 1 << 20)
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    ours.close()
    theirs.close()


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


MARK = bytes(range(32))


@pytest.mark.parametrize("piece", [1, 7, 31, 32, 33, 4096])
@pytest.mark.parametrize(
    "before",
    [b"", frame(Kind.BYE), MARK[:-1], frame(Kind.DATA, nbytes=1 << 19) + bytes(40_000)],
    ids=["nothing", "frame", "half a mark", "half a message"],
)
def test_what_comes_before_the_mark_is_dropped(bare: Two, before: bytes, piece: int) -> None:
    """Nothing of what was under way on a connection reaches the next engine, wherever it was cut."""
    bare.a.begin_at(1, MARK)
    assert bare.peer is not None
    bare.peer.settimeout(SECONDS)
    said = before + MARK + frame(Kind.VALUE, flags=4, key=9, nbytes=9) + b"name" + b"value"
    for at in range(0, len(said), piece):
        bare.peer.sendall(said[at : at + piece])
        bare.a.drain(1)
    assert events_of(bare.a) == [(VALUE, 1, 4, 9, b"namevalue")]
    assert not select.select([bare.peer], [], [], 0)[0]  # ours goes out with our first frame
    bare.a.bye(False)
    assert bare.peer.recv(len(MARK + frame(Kind.BYE)), socket.MSG_WAITALL) == MARK + frame(Kind.BYE)


@pytest.mark.parametrize(("kept", "closes"), [((), False), ((1,), False), ((1,), True)])
def test_a_connection_is_kept_for_whoever_wants_it(bare: Two, kept: tuple[int, ...], closes: bool) -> None:
    bare.a.end(False)
    found = bare.a.shut(kept)
    assert found == dict.fromkeys(kept, bare.lane)
    assert bare.peer is not None
    bare.peer.settimeout(0.0)
    if kept:
        with pytest.raises(BlockingIOError):
            bare.peer.recv(1)
        bare.a.part_with(1, closes)
    if closes or not kept:
        assert bare.peer.recv(1) == b""
        return
    with socket.socket(fileno=found[1]) as ours:
        ours.sendall(b"x")
        assert bare.peer.recv(1) == b"x"


def test_a_connection_that_has_ended_is_not_kept(bare: Two) -> None:
    assert bare.peer is not None
    bare.peer.close()
    assert not bare.a.drain(1)
    bare.a.end(False)
    assert bare.a.shut((1,)) == {}
