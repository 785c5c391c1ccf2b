"""Communicators of real processes: data, groups, order, and what a death leaves."""

from __future__ import annotations

import base64
import math
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuless.control import Action
from tests.gpuless.numbers_of_nccl import DTYPES, INTEGERS, from_bytes, to_bytes
from tests.gpuless.ranks import Rank, ask_all, await_true, connect, started

_SUM, _PROD, _MAX, _MIN, _AVG = range(5)
_NOT_READY = 600
_CHAR, _FLOAT = 0, 7
# Bytes: what a send completes without its receive, what is more than that, what is more than fits into the memory
# between the two.
_SMALL, _EAGER, _MIDDLE, _LARGE = 1000, 65_536, 70_000, 3_000_001
_REMOTE_ERROR = 6


@pytest.fixture
def pair(imitated: dict[str, str]) -> Iterator[list[Rank]]:
    with started(2, imitated) as ranks:
        connect(ranks)
        yield ranks


@pytest.fixture
def three(imitated: dict[str, str]) -> Iterator[list[Rank]]:
    with started(3, imitated) as ranks:
        connect(ranks)
        yield ranks


def _put(rank: Rank, dtype: int, values: list[float]) -> int:
    return int(rank.ask("buffer", base64.b64encode(to_bytes(dtype, values)).decode()))


def _get(rank: Rank, dtype: int, number: int) -> list[float]:
    assert rank.ask("synchronize") == 0
    return from_bytes(dtype, base64.b64decode(rank.ask("content", number)))


def _reduce(how: int, column: list[float], dtype: int) -> float:
    if how == _AVG:
        return sum(column) // len(column) if dtype in INTEGERS else sum(column) / len(column)
    ways: dict[int, Callable[[list[float]], float]] = {_SUM: sum, _PROD: math.prod, _MAX: max, _MIN: min}
    return ways[how](column)


# ---- data ------------------------------------------------------------------------------

_ROWS: list[list[float]] = [[1, 2, 1, 2, 1, 0], [2, 2, 1, 1, 1, 0], [0, 2, 1, 0, 1, 0]]  # one for each of three ranks


def _run(
    ranks: list[Rank], name: str, dtype: int, rows: list[list[float]], room: int, count: int, *extra: int
) -> list[list[float]]:
    """Run an operation with these send buffers; return the receive buffers of that many numbers."""
    recv = []
    for rank, row in zip(ranks, rows, strict=True):
        send = _put(rank, dtype, row)
        recv.append(_put(rank, dtype, [0] * room))
        assert rank.ask("operate", name, send, recv[-1], count, dtype, list(extra)) == 0
    return [_get(rank, dtype, number) for rank, number in zip(ranks, recv, strict=True)]


@pytest.mark.parametrize("how", [_SUM, _PROD, _MAX, _MIN, _AVG])
def test_reductions_of_every_type(three: list[Rank], how: int) -> None:
    for dtype in DTYPES:
        wanted = [_reduce(how, list(column), dtype) for column in zip(*_ROWS, strict=True)]
        assert _run(three, "ncclAllReduce", dtype, _ROWS, 6, 6, how) == [wanted] * 3, dtype
        scattered = _run(three, "ncclReduceScatter", dtype, _ROWS, 2, 2, how)
        assert scattered == [wanted[0:2], wanted[2:4], wanted[4:6]], dtype
        rooted = _run(three, "ncclReduce", dtype, _ROWS, 6, 6, how, 1)
        assert rooted == [[0] * 6, wanted, [0] * 6], dtype


@pytest.mark.parametrize("residence", [0, 1])  # in device memory, given by value
def test_a_sum_of_scaled_values(three: list[Rank], residence: int) -> None:
    for rank in three:
        scalar = base64.b64encode(to_bytes(_FLOAT, [rank.number + 1])).decode()
        assert rank.ask("premul", scalar, _FLOAT, residence) == 5
    wanted = [sum((r + 1) * row[i] for r, row in enumerate(_ROWS)) for i in range(6)]
    assert _run(three, "ncclAllReduce", _FLOAT, _ROWS, 6, 6, 5) == [wanted] * 3


def test_operations_without_arithmetic(three: list[Rank]) -> None:
    for dtype in DTYPES:
        flat = [value for row in _ROWS for value in row]
        assert _run(three, "ncclAllGather", dtype, _ROWS, 18, 6) == [flat] * 3
        assert _run(three, "ncclBroadcast", dtype, _ROWS, 6, 6, 2) == [_ROWS[2]] * 3
        if not all(three[0].ask("has", name) for name in ("ncclGather", "ncclScatter", "ncclAlltoAll")):
            continue  # NCCL before 2.28
        assert _run(three, "ncclGather", dtype, _ROWS, 18, 6, 0) == [flat, [0] * 18, [0] * 18]
        assert _run(three, "ncclScatter", dtype, _ROWS, 2, 2, 1) == [_ROWS[1][0:2], _ROWS[1][2:4], _ROWS[1][4:6]]
        exchanged = [[row[2 * r + i] for row in _ROWS for i in range(2)] for r in range(3)]
        assert _run(three, "ncclAlltoAll", dtype, _ROWS, 6, 2) == exchanged


@pytest.mark.parametrize("count", [1, 70_000, 1_000_003])
def test_large_reductions_in_place(three: list[Rank], count: int) -> None:
    for rank in three:
        assert rank.ask("floats", rank.number + 1, count) == 0
        assert rank.ask("operate", "ncclAllReduce", 0, 0, count, _FLOAT, [_SUM]) == 0
    assert ask_all(three, "synchronize") == [0] * 3
    assert ask_all(three, "different_floats", 0) == [[6.0]] * 3


@pytest.mark.parametrize("size", [0, 1, _SMALL, 65_536, 65_537, _LARGE])
def test_messages_keep_their_order_and_content(pair: list[Rank], size: int) -> None:
    sender, receiver = pair
    sent = [sender.ask("pattern", size, seed) for seed in range(3)]
    received = [receiver.ask("buffer", size=max(size, 1)) for _ in range(3)]
    for here, there in zip(sent, received, strict=True):
        assert sender.ask("operate", "ncclSend", here, -1, size, _CHAR, [1]) == 0
        assert receiver.ask("operate", "ncclRecv", -1, there, size, _CHAR, [0]) == 0
    assert ask_all(pair, "synchronize") == [0, 0]
    if size:
        assert [sender.ask("digest", n) for n in sent] == [receiver.ask("digest", n) for n in received]


def _timed(sender: Rank, receiver: Rank, size: int) -> float:
    """Seconds from the receive on, which is given last."""
    assert sender.ask("operate", "ncclSend", 0, -1, size, _CHAR, [receiver.number]) == 0
    began = time.monotonic()
    assert receiver.ask("operate", "ncclRecv", -1, 0, size, _CHAR, [sender.number]) == 0
    assert ask_all([sender, receiver], "synchronize") == [0, 0]
    return time.monotonic() - began


def test_a_link_takes_its_time_and_moves_the_first_part(imitated: dict[str, str]) -> None:
    with started(2, imitated, GPULESS_LINK="0.01") as pair:
        connect(pair)
        sender, receiver = pair
        sender.ask("pattern", _LARGE, 1)
        receiver.ask("buffer", size=_LARGE)
        assert _timed(sender, receiver, _LARGE) >= _LARGE / 0.01e9
        sent, came = (base64.b64decode(rank.ask("content", 0)) for rank in pair)
        assert came == sent[:_EAGER] + bytes(_LARGE - _EAGER)


def test_an_abort_ends_what_a_link_carries(imitated: dict[str, str]) -> None:
    with started(2, imitated, GPULESS_LINK="0.00001") as pair:  # five minutes for this message
        connect(pair)
        sender, receiver = pair
        for rank in pair:
            rank.ask("buffer", size=_LARGE)
        assert _timed(sender, receiver, _EAGER) < _EAGER / 0.00001e9, "short messages are not delayed"
        assert sender.ask("operate", "ncclSend", 0, -1, _LARGE, _CHAR, [1]) == 0
        assert receiver.ask("operate", "ncclRecv", -1, 0, _LARGE, _CHAR, [0]) == 0
        assert ask_all(pair, "settle", 0.3) == [_NOT_READY, _NOT_READY]
        assert ask_all(pair, "call", "ncclCommAbort") == [0, 0]
        assert ask_all(pair, "settle", 10) == [0, 0]


# ---- order, groups ---------------------------------------------------------------------


@pytest.mark.parametrize("large", [_MIDDLE, _LARGE])
def test_a_small_send_completes_early_and_a_large_one_meets_its_receive(pair: list[Rank], large: int) -> None:
    sender, receiver = pair
    sender.ask("buffer", size=large)
    receiver.ask("buffer", size=large)
    assert sender.ask("operate", "ncclSend", 0, -1, _SMALL, _CHAR, [1]) == 0
    assert sender.ask("settle", 10) == 0
    assert sender.ask("operate", "ncclSend", 0, -1, large, _CHAR, [1]) == 0
    assert sender.ask("settle", 0.3) == _NOT_READY
    assert receiver.ask("operate", "ncclRecv", -1, 0, _SMALL, _CHAR, [0]) == 0
    assert sender.ask("settle", 0.3) == _NOT_READY
    assert receiver.ask("operate", "ncclRecv", -1, 0, large, _CHAR, [0]) == 0
    assert ask_all(pair, "synchronize") == [0, 0]


def test_send_and_receive_of_one_group_make_progress_together(pair: list[Rank]) -> None:
    """Both send first and more than a send takes without its receive; outside a group that hangs."""
    for rank in pair:
        rank.ask("pattern", _LARGE, rank.number)
        rank.ask("buffer", size=_LARGE)
    assert [rank.ask("exchange", 1 - rank.number, 0, 1, _LARGE) for rank in pair] == [0, 0]
    assert ask_all(pair, "synchronize") == [0, 0]
    assert [rank.ask("digest", 1) for rank in pair] == [rank.ask("digest", 0) for rank in reversed(pair)]
    for rank in pair:
        peer = [1 - rank.number]
        assert rank.ask("operate", "ncclSend", 0, -1, _LARGE, _CHAR, peer) == 0
        assert rank.ask("operate", "ncclRecv", -1, 1, _LARGE, _CHAR, peer) == 0
    assert [rank.ask("settle", 0.3) for rank in pair] == [_NOT_READY, _NOT_READY]


@pytest.mark.parametrize(("sent", "received"), [(10, 20), (20, 10)])
def test_counts_that_differ_hang(pair: list[Rank], sent: int, received: int) -> None:
    sender, receiver = pair
    sender.ask("buffer", size=_SMALL)
    receiver.ask("buffer", size=_SMALL)
    assert sender.ask("operate", "ncclSend", 0, -1, sent, _CHAR, [1]) == 0
    assert receiver.ask("operate", "ncclRecv", -1, 0, received, _CHAR, [0]) == 0
    assert receiver.ask("settle", 0.3) == _NOT_READY
    assert receiver.ask("async_error") == 0
    assert receiver.ask("call", "ncclCommAbort") == 0
    assert receiver.ask("settle", 10) == 0


def test_copies_and_events_are_in_the_order_of_the_stream(pair: list[Rank]) -> None:
    """A fill behind a receive waits for it; the event recorded before it does not wait for the fill."""
    sender, receiver = pair
    sender.ask("pattern", _SMALL, 1)
    receiver.ask("pattern", _SMALL, 2)
    assert receiver.ask("ordered_fill", 0, _SMALL) == [_NOT_READY, _NOT_READY]
    untouched = receiver.ask("digest_of_memory", 0)
    assert untouched == receiver.ask("digest_of_pattern", _SMALL, 2), "neither receive nor fill has begun"
    assert sender.ask("operate", "ncclSend", 0, -1, _SMALL, _CHAR, [1]) == 0
    assert ask_all(pair, "synchronize") == [0, 0]
    assert set(base64.b64decode(receiver.ask("content", 0))) == {7}


def test_launches_of_a_communicator_do_not_overlap(pair: list[Rank]) -> None:
    """A send on another stream waits for a receive that was launched before."""
    first, second = pair
    for rank in pair:
        rank.ask("buffer", size=_SMALL)
        assert rank.ask("stream") == 1
    assert first.ask("operate", "ncclRecv", -1, 0, _SMALL, _CHAR, [1]) == 0
    assert first.ask("operate", "ncclSend", 0, -1, _SMALL, _CHAR, [1], on=1) == 0
    assert first.ask("settle", 0.3, on=1) == _NOT_READY
    assert second.ask("operate", "ncclSend", 0, -1, _SMALL, _CHAR, [0]) == 0
    assert first.ask("settle", 10, on=1) == 0


def test_held_operation_of_another_process(pair: list[Rank]) -> None:
    sender, receiver = pair
    for rank in pair:
        rank.ask("buffer", size=_SMALL)
    with sender.remote() as control:
        control.inject("ncclSend", Action.HOLD)
        assert sender.ask("operate", "ncclSend", 0, -1, _SMALL, _CHAR, [1]) == 0
        assert receiver.ask("operate", "ncclRecv", -1, 0, _SMALL, _CHAR, [0]) == 0
        assert receiver.ask("settle", 0.3) == _NOT_READY
        assert control.counters().fired(("ncclSend",)) == 1
        control.lift("ncclSend")
        assert ask_all(pair, "synchronize") == [0, 0]


def test_hanging_call_of_another_process(pair: list[Rank]) -> None:
    rank = pair[0]
    with rank.remote() as control:
        control.inject("ncclCommAbort", Action.HANG)
        rank.start("call", "ncclCommAbort")
        assert await_true(lambda: control.counters().sites["ncclCommAbort"].hanging == 1)
        control.lift("ncclCommAbort")
        assert rank.answer() == 0


# ---- death -----------------------------------------------------------------------------


def _segments() -> set[Path]:
    return set(Path("/dev/shm").iterdir())  # noqa: S108 - where a leftover would be


@pytest.mark.parametrize("sending", [True, False])
def test_kill_in_mid_transfer(imitated: dict[str, str], sending: bool) -> None:
    """The survivor's operation hangs until its communicator is aborted; its process goes on; nothing is left."""
    before = _segments()
    with started(2, imitated) as ranks:
        connect(ranks)
        victim, survivor = ranks
        victim.start("loop", 1, sending, 8 << 20)
        survivor.ask("buffer", size=8 << 20)
        name, numbers = ("ncclRecv", (-1, 0)) if sending else ("ncclSend", (0, -1))
        for _ in range(5):
            assert survivor.ask("operate", name, *numbers, 8 << 20, _CHAR, [0]) == 0
        victim.kill()
        for _ in range(50):  # more than can be under way
            assert survivor.ask("operate", name, *numbers, 8 << 20, _CHAR, [0]) == 0
        assert survivor.ask("settle", 0.5) == _NOT_READY
        assert survivor.ask("async_error") == 0, "a peer on the same host dies silently"
        assert survivor.ask("call", "ncclCommAbort") == 0
        assert survivor.ask("settle", 10) == 0
    assert _segments() == before


@pytest.mark.parametrize("delay", range(10))
def test_kill_at_any_moment_of_a_creation(imitated: dict[str, str], delay: int) -> None:
    before = _segments()
    with started(2, imitated) as ranks:
        identifier = ranks[0].ask("unique_id")
        for rank in ranks:
            rank.start("init", identifier, 2, rank.number, blocking=0)
        if delay:
            await_true(lambda: False, delay / 2000)
        ranks[0].kill()
        assert ranks[1].answer() in {0, 7}
        assert ranks[1].ask("call", "ncclCommAbort") == 0
    assert _segments() == before


def test_death_is_seen_by_the_network_first_in_the_asynchronous_error(imitated: dict[str, str]) -> None:
    with started(2, imitated, GPULESS_NETWORK="1") as ranks:
        connect(ranks)
        victim, survivor = ranks
        survivor.ask("buffer", size=_SMALL)
        assert survivor.ask("operate", "ncclRecv", -1, 0, _SMALL, _CHAR, [0]) == 0
        assert survivor.ask("async_error") == 0
        victim.kill()
        assert survivor.ask("await_async_error", _REMOTE_ERROR, 10)
        assert survivor.ask("settle", 0.3) == _NOT_READY, "what runs is not ended by it"
        assert survivor.ask("operate", "ncclRecv", -1, 0, _SMALL, _CHAR, [0]) == _REMOTE_ERROR
        assert survivor.ask("call", "ncclCommAbort") == 0
        assert survivor.ask("settle", 10) == 0


@pytest.mark.parametrize(("end", "is_loss"), [("ncclCommDestroy", False), ("ncclCommAbort", True)])
def test_the_network_tells_an_abort_from_an_orderly_end(imitated: dict[str, str], end: str, is_loss: bool) -> None:
    with started(2, imitated, GPULESS_NETWORK="1") as ranks:
        connect(ranks)
        assert ranks[0].ask("call", end) == 0
        assert ranks[1].ask("await_async_error", _REMOTE_ERROR, 10 if is_loss else 0.3) == is_loss


def test_a_stopped_process_is_not_dead(imitated: dict[str, str]) -> None:
    with started(2, imitated, GPULESS_NETWORK="1") as ranks:
        connect(ranks)
        os.kill(ranks[0].process, signal.SIGSTOP)
        assert not ranks[1].ask("await_async_error", _REMOTE_ERROR, 0.3)
        os.kill(ranks[0].process, signal.SIGCONT)


def test_threads_come_back(pair: list[Rank]) -> None:
    before = ask_all(pair, "threads")
    for rank in pair:
        rank.ask("buffer", size=_SMALL)
    for number in range(1, 11):
        assert ask_all(pair, "stream") == [number, number]
        for rank in pair:
            assert rank.ask("exchange", 1 - rank.number, 0, 0, _SMALL, on=number) == 0
        for rank in pair:
            assert rank.ask("synchronize", number) == 0
            assert rank.ask("on_stream", "cudaStreamDestroy", number) == 0
    assert await_true(lambda: ask_all(pair, "threads") == before)


def test_memory_and_descriptors_come_back(pair: list[Rank]) -> None:
    def open_files(rank: Rank) -> int:
        return len(list(Path(f"/proc/{rank.process}/fd").iterdir()))

    def mapped(rank: Rank) -> int:
        return sum("memfd:gpuless" in line for line in Path(f"/proc/{rank.process}/maps").read_text().splitlines())

    before = [(open_files(rank), mapped(rank)) for rank in pair]
    for number in range(1, 21):
        connect(pair)
        how = "ncclCommAbort" if number % 2 else "ncclCommDestroy"
        assert ask_all(pair, "call", how, number) == [0, 0]
    assert [(open_files(rank), mapped(rank)) for rank in pair] == before
