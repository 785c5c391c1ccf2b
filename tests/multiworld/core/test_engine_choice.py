"""The choice of the engine that moves the data of new worlds."""

from __future__ import annotations

import itertools

import pytest
import torch
from table import members

from multiworld import BackendUnavailable, InvalidArgument, MultiWorld
from multiworld.engine import library
from multiworld.engine.compiled_engine import CompiledEngine


@pytest.mark.parametrize(("choice", "compiled"), [("", True), ("compiled", True), ("python", False)])
def test_the_setting_chooses(store: str, monkeypatch: pytest.MonkeyPatch, choice: str, compiled: bool) -> None:
    monkeypatch.setenv("MULTIWORLD_ENGINE", choice)
    with members(store, 2) as (worlds, _):
        for world in worlds:
            assert isinstance(world.member.session.engine, CompiledEngine) is compiled


def test_members_of_both_engines_understand_each_other(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIWORLD_SAME_HOST", "tcp")  # for which no one asks before
    engines = itertools.cycle((None, library.compiled()))  # of the two who ask, whenever they do
    monkeypatch.setattr(library, "compiled", lambda: next(engines))
    with members(store, 2) as (worlds, pool):
        assert len({type(world.member.session.engine) for world in worlds}) == 2
        sums = [torch.ones(size) for size in (4, 300_000) for _ in worlds]
        for pair in (sums[:2], sums[2:]):
            list(pool.map(lambda world, total: world.sync.all_reduce(total), worlds, pair))
        assert all(bool((total == 2.0).all()) for total in sums)
        objects = pool.map(lambda world: world.sync.all_gather_object({"rank": world.rank}), worlds)
        assert list(objects) == [[{"rank": 0}, {"rank": 1}]] * 2
        receive = pool.submit(worlds[1].sync.recv_tensor, 0)
        worlds[0].sync.send_tensor(torch.ones(2, 3), 1)
        assert torch.equal(receive.result(20), torch.ones(2, 3))


def test_a_setting_that_names_no_engine_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIWORLD_ENGINE", "rust")
    with pytest.raises(InvalidArgument, match="MULTIWORLD_ENGINE is 'rust'"):
        MultiWorld()


@pytest.mark.parametrize("choice", ["", "compiled", "python"])
def test_a_package_without_its_compiled_part_is_an_error(monkeypatch: pytest.MonkeyPatch, choice: str) -> None:
    monkeypatch.setenv("MULTIWORLD_ENGINE", choice)
    monkeypatch.setattr(library, "_module", None)
    with pytest.raises(BackendUnavailable, match="no compiled part"):
        MultiWorld()
