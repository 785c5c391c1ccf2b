"""The device's memory is free as soon as its users let it go, between real processes on nccl (simulated)."""

from __future__ import annotations

import pytest

from tests.multiworld.device import memory_acts
from tests.multiworld.device.ranks import backends, has_bindings
from tests.multiworld.device.simulated import Cluster

assert has_bindings  # named in the marks of ``backends``


@pytest.mark.parametrize("backend", backends())
def test_no_operation_keeps_the_callers_memory_until_garbage_is_collected(members: Cluster) -> None:
    """The allocator of a device that is full does not know that the garbage collector could help."""
    for left in members.all(2, memory_acts.kept):
        assert left == dict.fromkeys(left, 0)
        assert len(left) == 7
