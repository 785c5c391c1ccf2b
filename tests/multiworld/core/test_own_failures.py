"""A failure to make a result is the call's own error, typed and at once: no peer is blamed, and no member waits."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, cast

import pytest
import torch
from procs import wait_until
from table import SOON, members
from torch.distributed import ReduceOp

from multiworld import InvalidArgument, PeerLost
from multiworld.backends.gloo import GlooDriver
from multiworld.backends.slot import DriverSlot
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


def test_what_fails_after_the_backend_is_done_is_a_typed_error(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with members(store, 2) as (worlds, pool):
        monkeypatch.setattr(Reduction, "apply", _cannot)
        started = time.monotonic()
        for error in at_all(
            worlds, pool, lambda w: w.sync.reduce_scatter_tensor(torch.ones(400_000), torch.ones(800_000))
        ):
            assert isinstance(error, InvalidArgument), error
            assert "cannot do that" in error.what
        assert time.monotonic() - started < SOON
        monkeypatch.undo()
        for world in worlds:
            driver = world.member.session.slots[0]._driver
            wait_until(lambda driver=driver: not driver._under_way, 5, "it is still under way")
        assert at_all(worlds, pool, lambda w: w.sync.all_reduce(torch.ones(1))) == [None, None]


class _Work:
    def __init__(self) -> None:
        self.future: Any = torch.futures.Future()

    def get_future(self) -> Any:
        return self.future


def test_gloo_work_is_over_even_if_handling_its_end_fails() -> None:
    """Else closing the backend would wait for it in vain."""
    driver, work = GlooDriver(cast("Any", None), 0, 1, "127.0.0.1"), _Work()
    driver.watch(work, _cannot)
    assert driver._under_way
    work.future.set_result(None)
    assert not driver._under_way


def test_a_backend_that_cannot_be_begun_ends_the_world_at_once(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def launch(*_: Any) -> None:
        raise RuntimeError("can't start new thread")

    with members(store, 2) as (worlds, pool):
        monkeypatch.setattr(DriverSlot, "launch", launch)
        ends = at_all(worlds, pool, lambda world: world.sync.all_reduce(torch.ones(300_000)))
        assert [type(end) for end in ends] == [PeerLost] * 2
