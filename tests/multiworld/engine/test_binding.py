"""Two compiled engines of one process, joined by a socket pair: what callers, loops and owners see of them."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from engine.conftest import see_plain
from engine.pairs import (
    BYE,
    DONE,
    LANE_ENDED,
    LOST,
    MARK,
    MISMATCH,
    PENDING,
    SECONDS,
    VALUE,
    Two,
    events_of,
    exchange,
    frame,
    recv,
    send,
    start_recv,
    start_send,
)
from procs import open_numbers

from multiworld.matching.protocol import CODES, Mode
from tests.multiworld.engine.reference.frames import HEADER, Kind


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


def test_a_whole_call_that_is_too_late_is_withdrawn(two: Two) -> None:
    late, again = torch.zeros(1), torch.zeros(1)
    assert recv(two.b, 0, 7, late, 0.05)[0] == PENDING
    ends = two.run(lambda: send(two.a, 1, 7, torch.ones(1), SECONDS), lambda: recv(two.b, 0, 7, again, SECONDS))
    assert [end[0] for end in ends] == [DONE, DONE]
    assert (late.item(), again.item()) == (0.0, 1.0)


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

    # The last bytes may be in the socket still when the lingering is over.
    assert two.run(lingers, lambda: _moved(two.b, lambda: over.is_set() and two.b.outcome(number)[0] == DONE))
    assert two.b.outcome(number)[0] == DONE
    assert got.sum() == 5_000_000
    assert events_of(two.b)[0][0] == BYE
    sent, _ = two.a.traffic()[1]
    _, received = two.b.traffic()[0]
    assert sent == received > 20_000_000


def test_a_peer_that_is_none_is_an_error(two: Two) -> None:
    with pytest.raises(ValueError, match="no such peer"):
        start_send(two.a, 5, 7, torch.zeros(1))


def test_a_world_that_ends_in_order_can_be_cut(bare: Two) -> None:
    payload = bytes(1 << 22)
    bare.peer.sendall(frame(Kind.POST, 0, int(Mode.OBJECT), 1, 7, 1 << 30))
    assert bare.a.drain(1)
    bare.a.start((False, False, 1, 7, int(Mode.OBJECT), 0, len(payload), payload, None))
    bare.a.end(True)
    assert not bare.a.linger(), "what was sent still goes out"
    bare.a.end(False)
    assert bare.a.linger()


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


@pytest.mark.parametrize("piece", [1, 7, 31, 32, 33, 4096])
@pytest.mark.parametrize(
    "before",
    [b"", frame(Kind.BYE), MARK[:-1], frame(Kind.DATA, nbytes=1 << 19) + bytes(40_000)],
    ids=["nothing", "frame", "half a mark", "half a message"],
)
def test_what_comes_before_the_mark_is_dropped(bare: Two, before: bytes, piece: int) -> None:
    """Nothing of what was under way on a connection reaches the next engine, wherever it was cut."""
    bare.a.begin_at((1,), MARK)
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
        bare.a.part_with((bare.lane,), closes)
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
