"""Arguments of a device driver that cannot work: typed errors that name world, rank and remedy."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuless.control import Action
from tests.multiworld.device.ranks import Process, ask_all, await_true, backends, has_bindings, make, opened, started

assert has_bindings  # named in the marks of ``backends``

ILLEGAL_ADDRESS, DEVICES_UNAVAILABLE = 700, 46
SECONDS = 15.0
EACH = pytest.mark.parametrize("backend", backends())


def _opening(ranks: list[Process], name: str) -> list[list[str] | None]:
    for rank in ranks:
        rank.ask("begin_open", name)
    return [rank.ask("end_open", name) for rank in ranks]


def _names(error: list[str] | None, kind: str, *words: str) -> bool:
    return error is not None and error[0] == kind and all(word in error[1] for word in (*words, "what to do"))


@EACH
def test_two_ranks_on_one_device(tmp_path: Path, backend: str) -> None:
    with started(2) as ranks:
        make(ranks, "w", tmp_path, backend, devices=["cuda:0", "cuda:0"])
        for place, error in enumerate(_opening(ranks, "w")):
            words = "world 'world-w'", f"rank {place}", "ranks 0 and 1 use the same device", "NCCL_HOSTID"
            assert _names(error, "BackendFailed", *words), error


@EACH
def test_two_ranks_on_one_device_as_two_hosts(tmp_path: Path, backend: str) -> None:
    with started(2, own={"NCCL_HOSTID": ["a", "b"]}) as ranks:
        make(ranks, "w", tmp_path, backend, devices=["cuda:0", "cuda:0"])
        assert _opening(ranks, "w") == [None, None]
        for rank in ranks:
            rank.ask("tensor", "t", [1.0])
            rank.ask("start", "sum", "w", "all_reduce", "t", "SUM")
        assert ask_all(ranks, "end", "sum") == [None, None]
        assert ranks[0].ask("values", "t") == [2.0]


@EACH
def test_a_device_that_is_lost_before_the_first_operation(tmp_path: Path, backend: str) -> None:
    """The program's own kernel has failed: that is no refusal, and the next world hears the same."""
    with started(2) as ranks, ranks[0].remote() as remote:
        make(ranks, "w", tmp_path, backend, timeout=2.0)
        remote.inject("cudaStreamCreateWithPriority", Action.FAIL, ILLEGAL_ADDRESS, times=1)
        error = _opening(ranks, "w")[0]
        assert _names(error, "DeviceFailed", "device cuda:0 failed with CUDA error 700"), error
        make(ranks, "next", tmp_path, backend, timeout=2.0)
        error = _opening(ranks, "next")[0]
        assert _names(error, "DeviceFailed", "device cuda:0 failed with CUDA error 700"), error


@EACH
def test_a_device_that_another_process_has_for_itself(tmp_path: Path, backend: str) -> None:
    """CUDA makes no context there; it can be used as soon as the other process has ended."""
    with started(2) as ranks, ranks[0].remote() as remote:
        make(ranks, "w", tmp_path, backend, timeout=2.0)
        remote.inject("cudaStreamCreateWithPriority", Action.FAIL, DEVICES_UNAVAILABLE)
        error = _opening(ranks, "w")[0]
        words = "world 'world-w'", "rank 0", "refuses the device cuda:0", "error 46", "Exclusive", "nvidia-smi"
        assert _names(error, "BackendFailed", *words), error
        remote.lift("cudaStreamCreateWithPriority")
        opened(ranks, "next", tmp_path, backend)


@pytest.mark.skipif("not has_bindings()", reason="nccl4py is not installed beside that torch")
def test_a_peer_with_another_driver(tmp_path: Path) -> None:
    with started(2) as ranks:
        for place, backend in enumerate(("nccl", "torch-nccl")):
            ranks[place].ask("make", "w", str(tmp_path / "w"), backend, place, 2, f"cuda:{place}")
        for place, error in enumerate(_opening(ranks, "w")):
            words = "world 'world-w'", f"rank {place}", "'nccl'", "'torch-nccl'", "the extra 'nccl'"
            assert _names(error, "BackendFailed", *words), error


@EACH
def test_a_member_that_does_not_come(tmp_path: Path, backend: str) -> None:
    with started(2) as ranks:
        make(ranks, "w", tmp_path, backend, timeout=1.0)
        (error,) = _opening(ranks[:1], "w")
        assert _names(error, "BackendFailed", "not made within 1.0 s", "rank 0", "join_timeout"), error


@EACH
def test_a_communicator_that_is_not_made_in_time(tmp_path: Path, backend: str) -> None:
    with started(2) as ranks, ranks[0].remote() as remote:
        for site in ("ncclCommInitRank", "ncclCommInitRankConfig"):
            remote.inject(site, Action.HANG)
        make(ranks, "w", tmp_path, backend, timeout=2.0)
        for error in _opening(ranks, "w"):
            assert _names(error, "BackendFailed", "not made within 2.0 s", "world 'world-w'"), error
        assert ranks[0].ask("ticks", 0.1)
        remote.lift("ncclCommInitRank", "ncclCommInitRankConfig")
        opened(ranks, "next", tmp_path, backend)


@EACH
def test_an_abort_that_hangs(tmp_path: Path, backend: str) -> None:
    """It is left to its thread: its waiters are released, and another world goes on."""
    with started(2) as ranks, ranks[0].remote() as remote:
        opened(ranks, "w", tmp_path, backend)
        opened(ranks, "other", tmp_path, backend)
        for place, rank in enumerate(ranks):
            rank.ask("tensor", "t", [1.0], device=f"cuda:{place}")
            rank.ask("tensor", "u", [1.0], device=f"cuda:{place}")
        remote.inject("ncclAllReduce", Action.HOLD, times=1)
        remote.inject("ncclCommAbort", Action.HANG)
        ranks[0].ask("give_up_aborts_after", 1.0)
        ranks[0].ask("start", "held", "w", "all_reduce", "t", "SUM")
        assert ranks[0].ask("launched", "held")
        ranks[0].ask("abort", "w")
        assert ranks[0].ask("end", "held")
        ranks[0].ask("close", "w", 0.5)
        for rank in ranks:
            rank.ask("start", "sum", "other", "all_reduce", "u", "SUM")
        assert ask_all(ranks, "end", "sum") == [None, None]
        assert ranks[0].ask("values", "u") == [2.0]
        await_true(lambda: bool(ranks[0].ask("errors_logged")), SECONDS, "nobody is told of the abort that hangs")
        (said,) = ranks[0].ask("errors_logged")
        for words in ("world 'world-w', rank 0", "has not ended in 1.0 s", "what to do: other worlds go on"):
            assert words in said


@EACH
def test_a_device_that_is_lost_ends_every_driver_on_it(tmp_path: Path, backend: str) -> None:
    with started(2) as ranks, ranks[0].remote() as remote:
        opened(ranks, "w", tmp_path, backend)
        opened(ranks, "other", tmp_path, backend)
        ranks[0].ask("tensor", "t", [1.0])
        ranks[0].ask("tensor", "u", [1.0])
        remote.inject("ncclAllReduce", Action.HOLD)
        ranks[0].ask("start", "pending", "other", "all_reduce", "u", "SUM")
        assert ranks[0].ask("launched", "pending")
        remote.inject("cudaEventRecord", Action.FAIL, ILLEGAL_ADDRESS, times=1)
        ranks[0].ask("start", "failed", "w", "all_reduce", "t", "SUM")
        if backend == "torch-nccl" and ranks[1].ask("watchdog_ends_the_process"):
            _await_end(ranks[0])  # before or after it has told its waiters: the watchdog looks ten times a second
            return
        for work in ("failed", "pending"):
            error = ranks[0].ask("end", work)
            assert _names(error, "DeviceFailed", "cuda:0", "700", "start this process again"), error
        ranks[0].ask("make", "next", str(tmp_path / "next"), backend, 0, 2, "cuda:0")
        (error,) = _opening(ranks[:1], "next")
        assert _names(error, "DeviceFailed", "cuda:0"), error
        assert ranks[0].ask("ticks", 1.5)


def _await_end(rank: Process) -> None:
    """Stock torch ends the process over a CUDA error that its watchdog meets. A release that does not is news."""
    with pytest.raises(EOFError):
        rank.ask("ticks", SECONDS)


@EACH
def test_a_peer_that_dies_in_mid_transfer_on_another_host(tmp_path: Path, backend: str) -> None:
    """NCCL says so in the background: nobody has to ask for an abort."""
    with started(2, network=True) as ranks:
        opened(ranks, "w", tmp_path, backend)
        ranks[0].ask("tensor", "t", [1.0])
        ranks[0].ask("start", "sum", "w", "all_reduce", "t", "SUM")
        assert ranks[0].ask("launched", "sum")
        tells = backend != "torch-nccl" or ranks[1].ask("knows_remote_errors")
        ranks[1].kill()
        # Older stock releases take an aborted operation for done; the world's own connections tell its members.
        assert (ranks[0].ask("end", "sum") is not None) is tells
        assert ranks[0].ask("ticks", 0.1)


@EACH
def test_a_peer_that_dies_in_mid_transfer_on_this_host(tmp_path: Path, backend: str) -> None:
    """NCCL says nothing: the world's connections tell, and the abort ends what hangs."""
    with started(2) as ranks, ranks[0].remote() as remote:
        opened(ranks, "w", tmp_path, backend)
        ranks[0].ask("tensor", "t", [1.0])
        ranks[0].ask("start", "sum", "w", "all_reduce", "t", "SUM")
        assert ranks[0].ask("launched", "sum")
        ranks[1].kill()
        ranks[0].ask("abort", "w")
        assert ranks[0].ask("end", "sum")
        ranks[0].ask("close", "w", 10.0)
        await_true(lambda: remote.counters().communicators == 0, SECONDS, "the communicator is there still")


def test_an_environment_that_was_set_otherwise(tmp_path: Path) -> None:
    with started(1, TORCH_NCCL_ASYNC_ERROR_HANDLING="1") as ranks:
        make(ranks, "w", tmp_path, "torch-nccl")
        (error,) = _opening(ranks, "w")
        words = "TORCH_NCCL_ASYNC_ERROR_HANDLING is '1'", "set it to 2", "rank 0", "world 'world-w'", "torchrun sets it"
        assert _names(error, "BackendFailed", *words), error
        with pytest.raises(RuntimeError, match=r"(?s)BackendFailed.*ASYNC_ERROR_HANDLING is '1'.*set it to 2"):
            ranks[0].ask("config", "torch-nccl", None)


def test_an_environment_that_was_set_otherwise_by_an_old_name() -> None:
    """Torch reads it where the new one is not set; the thread that launches would wait for each operation's end."""
    said = r"(?s)rank 0.*: NCCL_BLOCKING_WAIT is '1'.*unset NCCL_BLOCKING_WAIT"
    with started(1, NCCL_BLOCKING_WAIT="1") as ranks, pytest.raises(RuntimeError, match=said):
        ranks[0].ask("config", "torch-nccl", None)
    with started(1, NCCL_BLOCKING_WAIT="1", TORCH_NCCL_BLOCKING_WAIT="0") as ranks:
        assert ranks[0].ask("config", "torch-nccl", None) == "cuda:0"


def test_the_environment_is_set_by_who_joins() -> None:
    """Not in a thread, while others read it in C: a ``getenv`` beside a ``setenv`` can end the process."""
    with started(1) as ranks:
        assert ranks[0].ask("variable", "TORCH_NCCL_CUDA_EVENT_CACHE") is None
        ranks[0].ask("config", "torch-nccl", None)
        assert ranks[0].ask("variable", "TORCH_NCCL_CUDA_EVENT_CACHE") == "0"


@EACH
def test_a_device_that_is_not_there(tmp_path: Path, backend: str) -> None:
    with started(1) as ranks:
        assert ranks[0].ask("config", backend, "cuda:1") == "cuda:1"
        assert ranks[0].ask("config", backend, None) == "cuda:0"
        for device, words in (("cuda:7", "cuda:7 is not there.*cuda:0 to cuda:1"), ("cpu", "pass a CUDA device")):
            with pytest.raises(RuntimeError, match=f"(?s)rank 0.*{words}"):
                ranks[0].ask("config", backend, device)
