"""Eight faults that a driver for a device must not have, each with what brings it out on simulated NCCL."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuless.control import Action
from tests.multiworld.device.ranks import Process, ask_all, await_true, backends, has_bindings, make, opened, started

assert has_bindings  # named in the marks of ``backends``

SYSTEM_ERROR, REMOTE_ERROR = 2, 6
SECONDS = 15.0
EACH = pytest.mark.parametrize("backend", backends())
#: what torch's own group does is not the driver's
OWN = pytest.mark.parametrize("backend", backends()[:1])


def _tensors(ranks: list[Process], name: str = "t") -> None:
    for place, rank in enumerate(ranks):
        rank.ask("tensor", name, [1.0, 2.0], device=f"cuda:{place}")


def _held(ranks: list[Process], tmp_path: Path, backend: str) -> None:
    """An all-reduce of the first rank that is in its stream and does not end; the other members do not take part."""
    opened(ranks, "w", tmp_path, backend)
    _tensors(ranks)
    with ranks[0].remote() as remote:
        remote.inject("ncclAllReduce", Action.HOLD)
    ranks[0].ask("start", "held", "w", "all_reduce", "t", "SUM")
    assert ranks[0].ask("launched", "held")


@EACH
def test_a_lock_held_in_nccl(tmp_path: Path, backend: str) -> None:
    """Operations are started under a session's lock, and in the thread that serves all worlds."""
    with started(2) as ranks:
        opened(ranks, "w", tmp_path, backend)
        _tensors(ranks)
        with ranks[0].remote() as remote:
            remote.inject("ncclAllReduce", Action.HANG)
            ranks[0].start("start", "hung", "w", "all_reduce", "t", "SUM")
            ranks[0].answer(SECONDS)
            await_true(lambda: remote.counters().sites["ncclAllReduce"].hanging == 1, SECONDS, "it was not launched")
            assert not ranks[0].ask("is_over", "hung")
            ranks[0].ask("abort", "w")
            assert ranks[0].ask("end", "hung")


@EACH
def test_the_wrong_stream(tmp_path: Path, backend: str) -> None:
    """An operation sees what the caller's stream produces, which is not done yet when it is started elsewhere."""
    with started(2) as ranks:
        opened(ranks, "w", tmp_path, backend)
        _tensors(ranks)
        with ranks[0].remote() as remote:
            remote.inject("ncclReduce", Action.HOLD)
            ranks[0].ask("stall", "mine")
            ranks[0].ask("copy", "t", [10.0, 20.0], "mine")
            ranks[0].ask("start", "sum", "w", "all_reduce", "t", "SUM", stream="mine")
            ranks[1].ask("start", "sum", "w", "all_reduce", "t", "SUM")
            assert ranks[0].ask("launched", "sum")
            assert not ranks[0].ask("is_over", "sum")
            remote.lift("ncclReduce")
        assert ask_all(ranks, "end", "sum") == [None, None]
        assert [rank.ask("values", "t") for rank in ranks] == [[11.0, 22.0]] * 2


@EACH
def test_what_follows_in_the_callers_stream_sees_the_result(tmp_path: Path, backend: str) -> None:
    with started(2) as ranks:
        opened(ranks, "w", tmp_path, backend)
        _tensors(ranks)
        ranks[0].ask("start", "sum", "w", "all_reduce", "t", "SUM")
        assert ranks[0].ask("launched", "sum")
        ranks[0].ask("join", "sum", "w", "mine")
        ranks[0].ask("copy", "t", [7.0, 8.0], "mine")  # not before the sum, which waits for the other member
        ranks[1].ask("start", "sum", "w", "all_reduce", "t", "SUM")
        assert ask_all(ranks, "end", "sum") == [None, None]
        assert ranks[1].ask("values", "t") == [2.0, 4.0]
        await_true(lambda: ranks[0].ask("values", "t") == [7.0, 8.0], SECONDS, "the copy came before the result")


@EACH
def test_use_after_free(tmp_path: Path, backend: str) -> None:
    """A waiting caller is released although the abort hangs; the device still writes, so the memory is not reused."""
    with started(2) as ranks:
        _held(ranks, tmp_path, backend)
        with ranks[0].remote() as remote:
            remote.inject("ncclCommRevoke", Action.FAIL, SYSTEM_ERROR)  # which would end the kernel
            remote.inject("ncclCommAbort", Action.HANG)
            ranks[0].ask("abort", "w")
            assert ranks[0].ask("end", "held")
            used = ranks[0].ask("forget", "t")
            ranks[0].ask("close", "w", 0.5)
            for count in range(20):
                ranks[0].ask("tensor", f"new{count}", [0.0, 0.0])
            assert used not in {ranks[0].ask("address", f"new{count}") for count in range(20)}
            remote.lift("ncclCommAbort")
            await_true(lambda: remote.counters().communicators == 0, SECONDS, "the abort was not finished")
            assert remote.counters().misused == 0, remote.counters().last_misused


@OWN
def test_a_stream_in_which_something_is_left_is_not_used_again(tmp_path: Path, backend: str) -> None:
    """A launch fails that had reached the device, and so does the abort: what is in the stream stays there."""
    with started(2) as ranks:
        opened(ranks, "w", tmp_path, backend)
        _tensors(ranks)
        with ranks[0].remote() as remote:
            remote.inject("ncclAllReduce", Action.HOLD)
            remote.inject("ncclCommAbort", Action.FAIL, SYSTEM_ERROR)
            remote.inject("ncclCommGetAsyncError", Action.FAIL, REMOTE_ERROR)
            ranks[0].ask("start", "failed", "w", "all_reduce", "t", "SUM")
            assert ranks[0].ask("end", "failed")
            await_true(lambda: remote.counters().launched == 1, SECONDS, "it was not launched")
            ranks[0].ask("close", "w", 0.5)
            await_true(lambda: _ended(ranks[0]), SECONDS, "a thread of the driver lives on")
            remote.lift("ncclCommGetAsyncError", "ncclCommAbort")
            opened(ranks, "v", tmp_path, backend)
            for place, rank in enumerate(ranks):
                rank.ask("tensor", "u", [3.0], device=f"cuda:{place}")
                rank.ask("start", "sent", "v", *(("recv", "u", 1) if place == 0 else ("send", "u", 0)))
            assert ask_all(ranks, "end", "sent") == [None, None]


@OWN
def test_a_communicator_is_not_freed_under_a_call(tmp_path: Path, backend: str) -> None:
    """A launch hangs in NCCL: who waits is released, but nobody frees what the call uses."""
    with started(2) as ranks:
        opened(ranks, "w", tmp_path, backend)
        _tensors(ranks)
        with ranks[0].remote() as remote:
            remote.inject("ncclAllReduce", Action.HANG)
            ranks[0].ask("start", "hung", "w", "all_reduce", "t", "SUM")
            await_true(lambda: remote.counters().sites["ncclAllReduce"].hanging == 1, SECONDS, "it was not launched")
            ranks[0].ask("abort", "w")
            assert ranks[0].ask("end", "hung")
            assert remote.counters().communicators == 1
            remote.lift("ncclAllReduce")
            await_true(lambda: remote.counters().communicators == 0, SECONDS, "the communicator was not freed")
            assert remote.counters().misused == 0, remote.counters().last_misused


@EACH
def test_a_swallowed_error_of_a_launch(tmp_path: Path, backend: str) -> None:
    """NCCL failed, so the world is broken: that is no wrong argument, after which it would go on."""
    with started(2) as ranks:
        opened(ranks, "w", tmp_path, backend)
        _tensors(ranks)
        with ranks[0].remote() as remote:
            remote.inject("ncclAllReduce", Action.FAIL, REMOTE_ERROR, times=1)
        ranks[0].ask("start", "failed", "w", "all_reduce", "t", "SUM")
        if backend == "torch-nccl" and not ranks[1].ask("survives_failed_launches"):
            with pytest.raises(EOFError):  # stock: the process ends; a release that does not is news
                ranks[0].ask("end", "failed")
            return
        error = ranks[0].ask("end", "failed")
        assert error[0] not in ("DriverRefused", "InvalidArgument")
        assert "remote process exited" in error[1]
        ranks[0].ask("start", "next", "w", "all_reduce", "t", "SUM")
        assert ranks[0].ask("end", "next") == error


@EACH
def test_a_swallowed_error_of_an_abort(tmp_path: Path, backend: str) -> None:
    """The event of an aborted operation comes, and torch's group may say that all went well."""
    with started(2) as ranks:
        _held(ranks, tmp_path, backend)
        ranks[0].ask("abort", "w")
        assert ranks[0].ask("end", "held")
        assert ranks[0].ask("calls", "held") == ["launched", "finished"]


@EACH
def test_the_mode_not_set(tmp_path: Path, backend: str) -> None:
    """A dead peer shows in the background; in torch's own mode the process ends over it."""
    with started(2) as ranks:
        _held(ranks, tmp_path, backend)
        with ranks[0].remote() as remote:
            remote.inject("ncclCommGetAsyncError", Action.FAIL, REMOTE_ERROR)
            error = ranks[0].ask("end", "held")
            if backend == "torch-nccl" and not ranks[1].ask("knows_remote_errors"):
                assert error is None  # stock: aborted, and taken for done; a release that tells is news
                return
            assert error
            assert error[0] != "DriverRefused"
            await_true(lambda: remote.counters().aborted > 0, SECONDS, "the communicator was not aborted")
        assert ranks[0].ask("ticks", 0.5)
        if backend == "torch-nccl":
            assert ranks[0].ask("variable", "TORCH_NCCL_ASYNC_ERROR_HANDLING") == "2"


@EACH
def test_the_gil_held(tmp_path: Path, backend: str) -> None:
    """A driver of CUDA that hangs must not stop Python: the heartbeats of all worlds are Python, too."""
    with started(2) as ranks:
        _held(ranks, tmp_path, backend)
        with ranks[0].remote() as remote:
            for site in ("cudaEventQuery", "cudaEventSynchronize", "cudaStreamQuery"):
                remote.inject(site, Action.HANG)
            ranks[0].start("ticks", 0.5)
            assert ranks[0].answer(SECONDS)
            ranks[0].ask("abort", "w")
            assert ranks[0].ask("end", "held")


@EACH
def test_a_lost_abort(tmp_path: Path, backend: str) -> None:
    """It comes while the communicator is being made, and must not be forgotten when that is."""
    with started(2) as ranks, ranks[0].remote() as remote:
        for site in ("ncclCommInitRank", "ncclCommInitRankConfig"):
            remote.inject(site, Action.HANG)
        for place, rank in enumerate(ranks):
            rank.ask("make", "w", str(tmp_path / "w"), backend, place, 2, f"cuda:{place}")
            rank.ask("begin_open", "w")
        await_true(lambda: _hanging(ranks[0]) == 1, SECONDS, "no communicator is being made")
        ranks[0].ask("abort", "w")
        assert ranks[0].ask("end_open", "w")
        remote.lift("ncclCommInitRank", "ncclCommInitRankConfig")
        await_true(lambda: _hanging(ranks[0]) == 0, SECONDS, "the injection was not lifted")
        await_true(lambda: _ended(ranks[0]), SECONDS, "a thread of the driver lives on")
        assert remote.counters().communicators == 0


def _hanging(rank: Process) -> int:
    with rank.remote() as remote:
        sites = remote.counters().sites
        return sites["ncclCommInitRank"].hanging + sites["ncclCommInitRankConfig"].hanging


def _ended(rank: Process) -> bool:
    return not any(name.startswith("mw-nccl") for name in rank.ask("threads"))


@EACH
def test_an_abort_at_close(tmp_path: Path, backend: str) -> None:
    """A send that is done here may be on its way still: who leaves in good order must not abort before all have met."""
    with started(2) as ranks:
        opened(ranks, "w", tmp_path, backend)
        _tensors(ranks)
        for rank in ranks:
            rank.ask("start", "sum", "w", "all_reduce", "t", "SUM")
        assert ask_all(ranks, "end", "sum") == [None, None]
        ask_all(ranks, "close", "w", 10.0)
        aborts = int(backend == "torch-nccl")  # torch's own end waits for the others, whatever becomes of them
        for rank in ranks:
            with rank.remote() as remote:
                counters = remote.counters()
                assert (counters.aborted, counters.communicators, counters.misused) == (aborts, 0, 0)


@EACH
def test_a_member_that_gives_up_its_close(tmp_path: Path, backend: str) -> None:
    """The others have met it already, and must not wait for it any more."""
    with started(2) as ranks, ranks[1].remote() as remote:
        opened(ranks, "w", tmp_path, backend)
        remote.inject("ncclCommFinalize", Action.HANG)
        for rank in ranks:
            rank.ask("begin_close", "w", SECONDS)
        await_true(lambda: _ended(ranks[0]), SECONDS, "a thread of the driver lives on")
        with ranks[0].remote() as ours:
            assert ours.counters().communicators == 0
        remote.lift("ncclCommFinalize")
        await_true(lambda: _ended(ranks[1]), SECONDS, "a thread of the driver lives on")


@OWN
def test_a_device_that_is_lost_when_the_second_thread_chooses_it(tmp_path: Path, backend: str) -> None:
    with started(2) as ranks, ranks[1].remote() as remote:
        _tensors(ranks)
        ranks[1].ask("lose_device_in", "mw-nccl-assist")
        make(ranks, "w", tmp_path, backend)
        for rank in ranks:
            rank.ask("begin_open", "w")
        for rank in ranks:
            rank.ask("end_open", "w")  # before the loss or with its error
        await_true(lambda: remote.counters().sites["cudaSetDevice"].fired == 1, SECONDS, "the device is not lost")
        ranks[1].ask("start", "sum", "w", "all_reduce", "t", "SUM")
        error = ranks[1].ask("end", "sum")
        assert error is not None
        assert error[0] == "DeviceFailed"
        assert ranks[1].ask("uncaught") == []


@pytest.mark.parametrize("backend", ["torch-nccl"])
def test_a_look_at_what_is_over_meanwhile(tmp_path: Path, backend: str) -> None:
    """One thread is to look for failures; the other one hears of the end first, and lets go of the operation."""
    with started(2) as ranks:
        opened(ranks, "w", tmp_path, backend)
        _tensors(ranks)
        ranks[0].ask("look_late", "w")
        ranks[0].ask("start", "first", "w", "all_reduce", "t", "SUM")
        assert ranks[0].ask("is_looking", "w")
        ranks[1].ask("start", "first", "w", "all_reduce", "t", "SUM")
        assert ask_all(ranks, "end", "first") == [None, None]
        for rank in ranks:
            rank.ask("start", "second", "w", "all_reduce", "t", "SUM")
        assert ask_all(ranks, "end", "second") == [None, None]
        assert ranks[0].ask("uncaught") == []
