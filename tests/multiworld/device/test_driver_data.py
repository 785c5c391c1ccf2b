"""The device drivers between real processes on simulated NCCL: data, order, refusals, life and leaks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.multiworld.device.ranks import Process, ask_all, await_true, backends, has_bindings, opened, started

assert has_bindings  # named in the marks of ``backends``

SECONDS = 15.0


@pytest.mark.parametrize("backend", backends())
def test_every_operation_moves_its_data(tmp_path: Path, backend: str) -> None:
    with started(2) as ranks:
        opened(ranks, "w", tmp_path, backend)
        for place, rank in enumerate(ranks):
            _tensors(rank, place)
        for name, arguments in _CALLS.items():
            for place, rank in enumerate(ranks):
                rank.ask("start", name, "w", *_for(place, name, arguments))
            assert ask_all(ranks, "end", name) == [None, None], name
        got = [{name: rank.ask("values", name) for name in _EXPECTED[place]} for place, rank in enumerate(ranks)]
        assert got == _EXPECTED
        assert [rank.ask("calls", "broadcast") for rank in ranks] == [["launched", "finished"]] * 2
        assert [_unused(rank) for rank in ranks] == [(0, 0)] * 2


def _tensors(rank: Process, place: int) -> None:
    device = f"cuda:{place}"
    for name in ("b", "ar", "r", "mine", "g", "rs", "p"):
        rank.ask("tensor", name, [place + 1.0, place + 2.0], device=device)
    for name in ("ag0", "ag1", "ga0", "ga1", "sc", "rs-out"):
        rank.ask("tensor", name, [0.0, 0.0], device=device)
    rank.ask("tensor", "rs-out", [0.0], device=device)
    for name, values in (("sc0", [5.0, 6.0]), ("sc1", [7.0, 8.0])):
        rank.ask("tensor", name, values, device=device)
    rank.ask("tensor", "a2a", [10.0 * place + x for x in range(3)], device=device)
    rank.ask("tensor", "a2a-out", [0.0] * (4 if place else 2), device=device)


_CALLS: dict[str, list[Any]] = {
    "broadcast": ["broadcast", "b", 1],
    "all_reduce": ["all_reduce", "ar", "SUM"],
    "reduce": ["reduce", "r", 1, "MAX"],
    "all_gather": ["all_gather", ["ag0", "ag1"], "mine"],
    "gather": ["gather", ["ga0", "ga1"], "g", 0],
    "scatter": ["scatter", "sc", ["sc0", "sc1"], 0],
    "reduce_scatter": ["reduce_scatter", "rs-out", "rs", "SUM"],
    "all_to_all": ["all_to_all", "a2a-out", "a2a"],
    "p2p": [],
}
_EXPECTED = [
    {
        "b": [2, 3],
        "ar": [3, 5],
        "ag0": [1, 2],
        "ag1": [2, 3],
        "ga0": [1, 2],
        "ga1": [2, 3],
        "sc": [5, 6],
        "rs-out": [3],
        "a2a-out": [0, 10],
        "p": [1, 2],
    },
    {
        "b": [2, 3],
        "ar": [3, 5],
        "r": [2, 3],
        "ag0": [1, 2],
        "ag1": [2, 3],
        "sc": [7, 8],
        "rs-out": [5],
        "a2a-out": [1, 2, 11, 12],
        "p": [1, 2],
    },
]


def _for(place: int, name: str, arguments: list[Any]) -> list[Any]:
    """Return arguments that differ between members: lists are the root's, and so are the splits of all-to-all."""
    if name == "p2p":
        return ["recv", "p", 0] if place else ["send", "p", 1]
    if name == "all_to_all":
        return [*arguments, [2, 2] if place else [1, 1], [1, 2]]
    if place and name in ("gather", "scatter"):
        return [[] if isinstance(one, list) else one for one in arguments]
    return arguments


def _unused(rank: Process) -> tuple[int, int]:
    with rank.remote() as remote:
        counters = remote.counters()
        return counters.misused, counters.unimplemented


@pytest.mark.parametrize("backend", backends())
def test_what_nccl_cannot_do_is_refused_and_the_communicator_goes_on(tmp_path: Path, backend: str) -> None:
    with started(2) as ranks:
        opened(ranks, "w", tmp_path, backend)
        for place, rank in enumerate(ranks):
            rank.ask("tensor", "short", [1, 2], "int16", f"cuda:{place}")
            rank.ask("tensor", "long", [1, 2], "int64", f"cuda:{place}")
            for name, arguments in (("a", ["short", "SUM"]), ("b", ["long", "BAND"]), ("c", ["long", "SUM"])):
                rank.ask("start", name, "w", "all_reduce", *arguments)
        assert [error[0] for error in ask_all(ranks, "end", "a")] == ["DriverRefused"] * 2
        assert [error[0] for error in ask_all(ranks, "end", "b")] == ["DriverRefused"] * 2
        assert ask_all(ranks, "end", "c") == [None, None]
        assert ranks[0].ask("values", "long") == [2, 4]


@pytest.mark.parametrize("backend", backends())
def test_outputs_may_lie_apart_on_one_member_and_together_on_another(tmp_path: Path, backend: str) -> None:
    """As after a cancelled all-gather, which goes on with copies: NCCL is called in the same way on both."""
    with started(2) as ranks:
        opened(ranks, "w", tmp_path, backend)
        for place, rank in enumerate(ranks):
            rank.ask("tensor", "mine", [place + 1.0, place + 2.0], device=f"cuda:{place}")
        ranks[0].ask("pieces", ["a", "b"], 2, "cuda:0")
        for name in ("a", "b"):
            ranks[1].ask("tensor", name, [0.0, 0.0], device="cuda:1")
        for rank in ranks:
            rank.ask("start", "all", "w", "all_gather", ["a", "b"], "mine")
        assert ask_all(ranks, "end", "all") == [None, None]
        assert [[rank.ask("values", name) for name in ("a", "b")] for rank in ranks] == [[[1.0, 2.0], [2.0, 3.0]]] * 2


@pytest.mark.parametrize("backend", backends())
def test_drivers_that_come_and_go_leave_nothing(tmp_path: Path, backend: str) -> None:
    """Streams, communicators, threads and device memory, in order and by abort."""
    with started(2) as ranks:
        seen = []
        for count in range(12):
            name = f"w{count}"
            opened(ranks, name, tmp_path, backend)
            for place, rank in enumerate(ranks):
                rank.ask("tensor", "t", [1.0], device=f"cuda:{place}")
                rank.ask("start", name, name, "all_reduce", "t", "SUM")
            assert ask_all(ranks, "end", name) == [None, None]
            if count % 2:
                ask_all(ranks, "abort", name)
            ask_all(ranks, "close", name, 10.0)
            await_true(lambda: ask_all(ranks, "threads") == [[], []], SECONDS, "threads are left")
            seen.append([_held(rank) for rank in ranks])
        assert seen[3] == seen[-1]
        assert seen[-1][0][0] == 0


def _held(rank: Process) -> tuple[int, int, int]:
    """Communicators, streams and bytes of device memory."""
    with rank.remote() as remote:
        counters = remote.counters()
        return counters.communicators, counters.streams, counters.allocated
