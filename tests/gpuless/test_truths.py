"""The imitation is as unkind as NCCL and CUDA are: each of these fails if it becomes kinder."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuless.control import Action, Switch
from gpuless.imitation import environment
from gpuless.subject import Subject
from tests.gpuless.ranks import Rank, ask_all, await_true, connect, started

_NOT_READY, _ILLEGAL_ADDRESS, _INVALID_HANDLE, _CAPTURE = 600, 700, 400, 900
_CONTEXT_DESTROYED = 709
_INTERNAL_ERROR, _INVALID_ARGUMENT, _INVALID_USAGE, _IN_PROGRESS, _CUDA_ERROR = 3, 4, 5, 7, 1
_FLOAT, _SUM = 7, 0
_ALIVE = 0.3  # seconds for which what must not end is watched


@pytest.fixture
def one(imitated: dict[str, str]) -> Iterator[Rank]:
    with started(1, imitated) as ranks:
        connect(ranks)
        ranks[0].ask("floats", 1, 10)
        yield ranks[0]


@pytest.fixture
def pair(imitated: dict[str, str]) -> Iterator[list[Rank]]:
    with started(2, imitated) as ranks:
        connect(ranks)
        ask_all(ranks, "floats", 1, 10)
        yield ranks


def _all_reduce(rank: Rank, comm: int = 0, on: int = 0) -> int:
    return int(rank.ask("operate", "ncclAllReduce", 0, 0, 10, _FLOAT, [_SUM], comm=comm, on=on))


# ---- dead handles ----------------------------------------------------------------------


@pytest.mark.parametrize("end", ["ncclCommAbort", "ncclCommDestroy"])
def test_use_of_a_communicator_after_its_end(one: Rank, end: str) -> None:
    assert one.ask("call", end) == 0
    with one.remote() as control:
        assert control.counters().misused == 0
        assert _all_reduce(one) == _INVALID_ARGUMENT
        for number, name in enumerate(("ncclCommAbort", "ncclCommDestroy", "ncclCommFinalize"), 2):
            assert one.ask("call", name) == _INVALID_ARGUMENT
            assert (control.counters().misused, control.counters().last_misused) == (number, name)
        with pytest.raises(RuntimeError, match="error 4"):
            one.ask("async_error")
        assert control.counters().misused == 5
    assert "use after free: ncclAllReduce" in one.end()


def test_use_after_the_end_ends_the_process_if_asked(one: Rank) -> None:
    with one.remote() as control:
        control.switch(Switch.MISUSE_ABORTS, on=True)
    one.ask("call", "ncclCommAbort")
    with pytest.raises(EOFError):
        one.ask("call", "ncclCommAbort")
    assert one._process.wait(10) == -signal.SIGABRT


def test_end_of_a_group_reads_its_communicators(one: Rank) -> None:
    """Another thread, as torch's watchdog, ends the communicator of what is queued in an open group."""
    assert one.ask("group_with_an_end", 10) == _INTERNAL_ERROR
    with one.remote() as control:
        assert (control.counters().misused, control.counters().last_misused) == (1, "ncclGroupEnd")


def test_use_of_streams_and_events_after_their_end(one: Rank) -> None:
    event = one.ask("event")
    assert one.ask("destroy_event", event) == 0
    assert one.ask("query_event", event) == _INVALID_HANDLE
    assert one.ask("on_stream", "cudaStreamDestroy") == 0
    assert one.ask("query") == _INVALID_HANDLE
    assert one.ask("on_stream", "cudaStreamDestroy") == _CONTEXT_DESTROYED
    assert _all_reduce(one) == _CUDA_ERROR
    with one.remote() as control:
        assert control.counters().misused == 4


def test_work_of_a_destroyed_stream_still_runs(pair: list[Rank]) -> None:
    event = _pending(pair[0])
    assert pair[0].ask("on_stream", "cudaStreamDestroy") == 0
    assert pair[0].ask("query_event", event) == _NOT_READY
    assert _all_reduce(pair[1]) == 0
    assert await_true(lambda: pair[0].ask("query_event", event) == 0)


# ---- what waits for what ---------------------------------------------------------------


def _pending(rank: Rank, comm: int = 0, on: int = 0) -> int:
    """Begin an operation whose peer does not come; return an event behind it."""
    assert _all_reduce(rank, comm, on) == 0
    return int(rank.ask("event", on))


def test_abort_waits_for_kernels_that_do_not_end(pair: list[Rank]) -> None:
    """Two communicators share a stream: the second one's kernel is behind the first one's."""
    connect(pair)
    rank = pair[0]
    _pending(rank, comm=0)
    _pending(rank, comm=1)
    rank.ask("background", "call", "ncclCommAbort", 1)
    assert rank.ask("finished", _ALIVE) is None
    assert rank.ask("call", "ncclCommAbort", 0) == 0
    assert rank.ask("finished", 10) == 0


def test_abort_in_one_group_does_not(pair: list[Rank]) -> None:
    connect(pair)
    rank = pair[0]
    _pending(rank, comm=0)
    _pending(rank, comm=1)
    rank.ask("background", "abort_together", [1, 0])
    assert rank.ask("finished", 10) == 0


@pytest.mark.parametrize("name", ["ncclCommDestroy", "ncclCommFinalize"])
def test_an_orderly_end_waits_for_kernels(pair: list[Rank], name: str) -> None:
    rank = pair[0]
    _pending(rank)
    rank.ask("background", "call", name)
    assert rank.ask("finished", _ALIVE) is None
    assert _all_reduce(pair[1]) == 0
    if name == "ncclCommFinalize":
        assert rank.ask("finished", _ALIVE) is None, "the peer has not finalized"
        assert pair[1].ask("call", name) == 0
    assert rank.ask("finished", 10) == 0


def test_an_abort_does_not_wait_for_a_blocking_finalize(pair: list[Rank]) -> None:
    """Another thread is in it, and ``ncclCommAbort`` would free what it uses."""
    rank = pair[0]
    rank.ask("background", "call", "ncclCommFinalize")
    assert rank.ask("finished", _ALIVE) is None, "the peer has not finalized"
    assert rank.ask("call", "ncclCommAbort") == _INVALID_ARGUMENT
    with rank.remote() as control:
        assert (control.counters().misused, control.counters().last_misused) == (1, "ncclCommFinalize")
    assert pair[1].ask("call", "ncclCommFinalize") == 0
    assert rank.ask("finished", 10) == 0
    assert rank.ask("call", "ncclCommAbort") == 0


def test_device_synchronize_waits_for_all_streams_of_the_device(pair: list[Rank]) -> None:
    rank = pair[0]
    rank.ask("stream")
    _pending(rank, on=1)
    rank.ask("background", "cuda", "cudaDeviceSynchronize")
    assert rank.ask("finished", _ALIVE) is None
    assert _all_reduce(pair[1]) == 0
    assert rank.ask("finished", 10) == 0


@pytest.mark.parametrize(
    ("switch", "call"), [(Switch.FREE_WAITS, ("free", 1)), (Switch.LOAD_WAITS, ("launch_kernel",))]
)
def test_what_waits_for_the_device_implicitly(pair: list[Rank], switch: Switch, call: tuple[object, ...]) -> None:
    rank = pair[0]
    rank.ask("floats", 1, 10)
    _pending(rank)
    with rank.remote() as control:
        control.switch(switch, on=True)
    rank.ask("background", *call)
    assert rank.ask("finished", _ALIVE) is None
    assert rank.ask("call", "ncclCommAbort") == 0
    assert rank.ask("finished", 10) is not None


def test_eager_loading_waits_for_nothing(imitated: dict[str, str]) -> None:
    with started(2, imitated, GPULESS_LOAD_WAITS="1", CUDA_MODULE_LOADING="EAGER") as pair:
        connect(pair)
        ask_all(pair, "floats", 1, 10)
        _pending(pair[0])
        pair[0].ask("background", "launch_kernel")
        assert pair[0].ask("finished", 10) is not None


# ---- creation --------------------------------------------------------------------------


def test_creation_waits_for_all_ranks(imitated: dict[str, str]) -> None:
    with started(2, imitated) as ranks:
        identifier = ranks[0].ask("unique_id")
        ranks[0].start("init", identifier, 2, 0)
        with pytest.raises(TimeoutError):
            ranks[0].answer(_ALIVE)
        assert ranks[1].ask("init", identifier, 2, 1) == 0
        assert ranks[0].answer() == 0


def test_nonblocking_creation_is_in_progress(imitated: dict[str, str]) -> None:
    with started(2, imitated) as ranks:
        identifier = ranks[0].ask("unique_id")
        assert ranks[0].ask("init", identifier, 2, 0, blocking=0) == _IN_PROGRESS
        ranks[0].ask("floats", 1, 10)
        assert not ranks[0].ask("await_async_error", 0, _ALIVE)
        assert ranks[0].ask("async_error") == _IN_PROGRESS
        assert _all_reduce(ranks[0]) == _INVALID_ARGUMENT
        assert ranks[1].ask("init", identifier, 2, 1, blocking=0) in {0, _IN_PROGRESS}
        for rank in ranks:
            assert rank.ask("await_async_error", 0, 10)


def test_nonblocking_creation_can_be_aborted(imitated: dict[str, str]) -> None:
    with started(1, imitated) as (rank,):
        assert rank.ask("init", rank.ask("unique_id"), 2, 0, blocking=0) == _IN_PROGRESS
        assert rank.ask("call", "ncclCommAbort") == 0


def test_operations_of_nonblocking_communicators_are_in_progress(imitated: dict[str, str], subject: Subject) -> None:
    """Those that connect first; since NCCL 2.23.4 all of them."""
    later = _IN_PROGRESS if subject.nccl_version >= 22304 else 0
    with started(2, imitated) as ranks:
        identifier = ranks[0].ask("unique_id")
        for rank in ranks:
            rank.start("init", identifier, 2, rank.number, blocking=0)
        assert {rank.answer() for rank in ranks} <= {0, _IN_PROGRESS}
        for rank in ranks:
            assert rank.ask("await_async_error", 0, 10)
            rank.ask("floats", 1, 10)
            rank.ask("floats", 1, 10)
        for expected in (_IN_PROGRESS, later):
            assert [rank.ask("exchange", 1 - rank.number, 0, 1, 10, _FLOAT) for rank in ranks] == [expected] * 2
            for rank in ranks:
                assert rank.ask("await_async_error", 0, 10)
                assert rank.ask("settle", 10) == 0
        for rank in ranks:
            assert _all_reduce(rank) == later
        for rank in ranks:
            assert rank.ask("await_async_error", 0, 10)
            assert rank.ask("settle", 10) == 0
            assert rank.ask("different_floats", 0) == [2.0]


def test_other_ways_of_creation_meet_their_peers(imitated: dict[str, str]) -> None:
    with started(2, imitated) as ranks:
        if not ranks[0].ask("has", "ncclCommInitRankScalable"):
            pytest.skip("the NCCL of this torch has no ncclCommInitRankScalable")
        identifier = ranks[0].ask("unique_id")
        ranks[0].start("init_scalable", identifier, 2, 0)
        with pytest.raises(TimeoutError):
            ranks[0].answer(_ALIVE)
        assert ranks[1].ask("init_scalable", identifier, 2, 1) == 0
        assert ranks[0].answer() == 0


def test_one_process_with_all_ranks(imitated: dict[str, str]) -> None:
    with started(1, imitated) as (rank,):
        assert rank.ask("init_all", 2) == 0
        assert [rank.ask("place", 0), rank.ask("place", 1)] == [[0, 2], [1, 2]]


def test_a_communicator_of_no_color_leaves_nothing(pair: list[Rank]) -> None:
    assert ask_all(pair, "split", -1, 0) == [0, 0]
    for rank in pair:
        with rank.remote() as control:
            assert control.counters().communicators == 1


def test_split(imitated: dict[str, str]) -> None:
    """Colors 0, 1, 0 with keys that turn the order round; the last rank takes part in no group the second time."""
    with started(3, imitated) as ranks:
        connect(ranks)
        for rank in ranks[:2]:
            rank.start("split", rank.number % 2, -rank.number)
        with pytest.raises(TimeoutError):
            ranks[0].answer(_ALIVE)
        assert ranks[2].ask("split", 0, -2) == 0
        assert [rank.answer() for rank in ranks[:2]] == [0, 0]
        assert [rank.ask("place", 1) for rank in ranks] == [[1, 2], [0, 1], [0, 2]]
        for rank in ranks:
            rank.start("split", -1 if rank.number == 2 else 5, 0)
        assert [rank.answer() for rank in ranks] == [0, 0, 0]
        assert [rank.ask("place", 2) for rank in ranks[:2]] == [[0, 2], [1, 2]]
        ask_all(ranks, "floats", 1, 10)
        for rank in ranks[:2]:
            assert _all_reduce(rank, 2) == 0
        assert ask_all(ranks, "synchronize") == [0, 0, 0]
        assert [rank.ask("different_floats", 0) for rank in ranks] == [[2.0], [2.0], [1.0]]


def test_split_whose_peer_does_not_come_ends_with_its_parent(pair: list[Rank]) -> None:
    rank = pair[0]
    rank.ask("background", "split", 0, 0)
    assert rank.ask("finished", _ALIVE) is None
    assert rank.ask("call", "ncclCommAbort") == 0
    assert rank.ask("finished", 10) not in {None, 0}


def test_shrink_and_grow(imitated: dict[str, str]) -> None:
    with started(3, imitated) as ranks:
        if not (ranks[0].ask("has", "ncclCommShrink") and ranks[0].ask("has", "ncclCommGrow")):
            pytest.skip("the NCCL of this torch has no ncclCommShrink and ncclCommGrow")
        connect(ranks)
        ranks[1].kill()
        left = [ranks[0], ranks[2]]
        assert ask_all(left, "shrink", [1]) == [0, 0]
        assert [rank.ask("place", 1) for rank in left] == [[0, 2], [1, 2]]
        with started(1, imitated, NCCL_HOSTID="new") as (new,):
            identifier = left[0].ask("grow_id", 1)
            left[0].start("grow", 3, identifier, 1)
            left[1].start("grow", 3, "", 1)
            with pytest.raises(TimeoutError):
                left[0].answer(_ALIVE)
            assert new.ask("grow", 3, identifier, rank=2) == 0
            assert [rank.answer() for rank in left] == [0, 0]
            assert [rank.ask("place", 2) for rank in left] == [[0, 3], [1, 3]]
            assert new.ask("place", 0) == [2, 3]


# ---- errors ----------------------------------------------------------------------------


@pytest.mark.parametrize(("code", "sticks"), [(_ILLEGAL_ADDRESS, True), (719, True), (400, False), (900, False)])
def test_errors_that_damage_the_context_stick(one: Rank, code: int, sticks: bool) -> None:
    event = one.ask("event")
    with one.remote() as control:
        control.inject("cudaEventQuery", Action.FAIL, code, times=1)
        assert one.ask("query_event", event) == code
        later = code if sticks else 0
        assert one.ask("query_event", event) == later
        assert one.ask("cuda", "cudaGetLastError") == code
        assert one.ask("cuda", "cudaGetLastError") == later
        assert [one.ask("query"), one.ask("synchronize"), one.ask("cuda", "cudaDeviceSynchronize")] == [later] * 3
        assert one.ask("free", 0) == later
        assert _all_reduce(one) == (_CUDA_ERROR if sticks else 0)
        assert control.counters().sticky == later


def test_capturing_stream(one: Rank) -> None:
    assert one.ask("begin_capture") == 0
    assert one.ask("is_capturing") == 1
    assert one.ask("synchronize") == _CAPTURE
    with one.remote() as control:
        assert control.counters().sticky == 0


def test_revoked_communicator(pair: list[Rank]) -> None:
    rank = pair[0]
    if not rank.ask("has", "ncclCommRevoke"):
        pytest.skip("the NCCL of this torch has no ncclCommRevoke")
    event = _pending(rank)
    assert rank.ask("call", "ncclCommRevoke", 0, 0) == 0
    assert rank.ask("query_event", event) == 0
    assert _all_reduce(rank) == _INVALID_USAGE
    assert rank.ask("call", "ncclCommFinalize") == _INVALID_USAGE
    assert rank.ask("call", "ncclCommDestroy") == 0


def test_registration_and_memory(one: Rank) -> None:
    wanted = [0, 0, 0, 0] if one.ask("has", "ncclCommWindowRegister") else [0, 0]
    assert one.ask("registered", 0) == wanted
    assert one.ask("nccl_memory", 1 << 20) == [0, 0]
    assert one.ask("call", "ncclCommAbort") == 0
    assert one.ask("registered", 0) == [_INVALID_ARGUMENT] * len(wanted)


def test_only_functions_of_the_installed_nccl_exist(one: Rank) -> None:
    version = one.ask("version")
    assert one.ask("has", "ncclCommRevoke") == (version >= 22800)


def test_number_of_devices(subject: Subject, imitated: dict[str, str]) -> None:
    many = environment(subject.python, Path(imitated["GPULESS_CONTROL"]), devices=8)
    with started(1, many) as (rank,):
        assert rank.ask("device_count") == 8
