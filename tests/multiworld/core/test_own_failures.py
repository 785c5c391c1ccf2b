"""A failure to make a result is the call's own error, typed and at once: no peer is blamed, and no member waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from table import SOON, members
from torch.distributed import ReduceOp

from multiworld import BrokenWorldException, InvalidArgument, PeerLost, WorldClosed
from multiworld.engine.engine import Engine
from multiworld.operations.reduction import Reduction

Call = Callable[[Any], Any]
COMPLEX = torch.complex64


def at_all(worlds: list[Any], pool: ThreadPoolExecutor, call: Call) -> list[Any]:
    """Return what the call gives or raises at each member."""

    def one(world: Any) -> Any:
        try:
            return call(world)
        except Exception as error:  # noqa: BLE001 - to be looked at
            return error

    return list(pool.map(one, worlds))


@pytest.mark.parametrize(
    "call",
    [
        lambda w: w.sync.all_reduce(torch.zeros(4, dtype=COMPLEX), ReduceOp.MAX),
        lambda w: w.sync.reduce(torch.zeros(4, dtype=COMPLEX), 1, ReduceOp.MIN),
        lambda w: w.sync.reduce_scatter_tensor(
            torch.zeros(300_000, dtype=COMPLEX), torch.zeros(600_000, dtype=COMPLEX), ReduceOp.MAX
        ),
    ],
    ids=["all_reduce", "reduce", "reduce_scatter"],
)
def test_a_reduction_that_torch_does_not_have_is_a_typed_error_at_once(store: str, call: Call) -> None:
    with members(store, 2) as (worlds, pool):
        started = time.monotonic()
        for error in at_all(worlds, pool, call):
            assert isinstance(error, InvalidArgument), error
            assert "torch has no" in error.what
            assert error.remedy
        assert time.monotonic() - started < SOON
        assert not any(world.member.session.engine.operations for world in worlds)
        assert at_all(worlds, pool, lambda w: w.sync.all_reduce(torch.ones(1))) == [None, None]


def _cannot(*_: Any) -> None:
    raise RuntimeError("cannot do that")


def test_what_fails_in_the_result_of_one_member_is_that_members_error(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with members(store, 2) as (worlds, pool):
        monkeypatch.setattr(Reduction, "apply", _cannot)
        root, other = at_all(worlds, pool, lambda w: w.sync.reduce(torch.ones(4), 0))
        assert isinstance(root, InvalidArgument), root
        assert "cannot do that" in root.what
        assert other is None
        monkeypatch.undo()
        assert at_all(worlds, pool, lambda w: w.sync.all_reduce(torch.ones(1))) == [None, None]


def test_what_fails_between_the_parts_is_that_members_error_and_ends_the_world(
    store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The others cannot go on without what it was to compute."""
    apply = Reduction.apply

    def cannot_at_rank_1(self: Reduction, target: torch.Tensor, tensors: list[torch.Tensor]) -> None:
        if tensors[1].data_ptr() == own:
            _cannot()
        apply(self, target, tensors)

    with members(store, 2) as (worlds, pool):
        tensors = [torch.ones(400_000) for _ in worlds]
        own = tensors[1][200_000:].data_ptr()
        monkeypatch.setattr(Reduction, "apply", cannot_at_rank_1)
        started = time.monotonic()
        other, ours = at_all(worlds, pool, lambda w: w.sync.all_reduce(tensors[w.rank]))
        assert time.monotonic() - started < SOON
        assert isinstance(ours, InvalidArgument), ours
        assert "cannot do that" in ours.what
        assert isinstance(other, BrokenWorldException), other
        assert "cannot do that" in str(other)
        assert isinstance(worlds[1].failure, WorldClosed)


def test_parts_that_cannot_be_moved_end_the_world_at_once(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with members(store, 2) as (worlds, pool):
        monkeypatch.setattr(Engine, "move", _fails)
        ends = at_all(worlds, pool, lambda world: world.sync.all_reduce(torch.ones(300_000)))
        assert [type(end) for end in ends] == [PeerLost] * 2


def _fails(*_: Any) -> None:
    raise LookupError("no such collective")
