"""Every awaitable method has a synchronous twin with its arguments and its documentation."""

from __future__ import annotations

import inspect

import pytest

from multiworld.worlds.group import Group, SyncGroup
from multiworld.worlds.multi_world import MultiWorld, SyncMultiWorld
from multiworld.worlds.world import SyncWorld, World


@pytest.mark.parametrize(("awaitable", "twin"), [(Group, SyncGroup), (World, SyncWorld), (MultiWorld, SyncMultiWorld)])
def test_every_awaitable_method_has_a_documented_twin(awaitable: type, twin: type) -> None:
    names = [name for name, value in inspect.getmembers(awaitable, inspect.iscoroutinefunction) if name[0] != "_"]
    assert names
    for name in names:
        assert inspect.signature(getattr(twin, name)) == inspect.signature(getattr(awaitable, name))
        assert getattr(twin, name).__doc__
        assert not inspect.iscoroutinefunction(getattr(twin, name))
