"""Two worlds on one device: a member of one dies in mid-transfer, and the other goes on; on nccl (simulated)."""

from __future__ import annotations

import pytest

from gpuless.control import Action, Remote
from tests.multiworld.device import isolation_acts
from tests.multiworld.device.ranks import backends, has_bindings
from tests.multiworld.device.simulated import SECONDS, Cluster
from tests.multiworld.procs import wait_until

assert has_bindings  # named in the marks of ``backends``
pytestmark = pytest.mark.parametrize("backend", backends())
ROUNDS = 30


def test_a_peer_that_dies_in_mid_transfer_leaves_the_other_world_alone(members: Cluster) -> None:
    leader = members.start(isolation_acts.leader, 0, ROUNDS)
    a = members.start(isolation_acts.follower, 1, "a", 0)
    b = members.start(isolation_acts.follower, 2, "b", 2 * ROUNDS)
    b.recv()
    with Remote(members.control, a.recv()) as block:
        block.inject("ncclRecv", Action.HOLD)
        assert leader.recv() == "met"
        leader.send("go")
        assert leader.recv() == "b goes on", "a transfer that hangs in one world stops the other"
        wait_until(lambda: bool(block.counters().fired(("ncclRecv",))), SECONDS, "nothing was on its way")
        a.kill()
    assert leader.result() == ("PeerLost", "a", (1,), "active")
    assert b.result() == ("over", (1 << 12) - 1.0)
