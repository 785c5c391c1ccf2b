"""Torch's watchdog, and the log prefix that stock torch replaces while it reads it."""

from __future__ import annotations

import pytest

from tests.multiworld.device import watchdog_acts
from tests.multiworld.device.simulated import Cluster


@pytest.mark.parametrize("backend", ["torch-nccl"])
def test_a_communicator_is_made_when_the_watchdog_has_read_the_prefix(members: Cluster) -> None:
    """It starts the heartbeat monitor after its first line; on one processor it would come after the constructor."""
    threads = members.start(watchdog_acts.makes_groups, 0).result(60)
    if threads is None:
        pytest.skip("the watchdog of this torch cannot be told to have begun")
    assert threads == [2] * 5
