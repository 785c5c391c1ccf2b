"""A device that CUDA has given up for this process: every world on it ends with one typed error, others go on."""

from __future__ import annotations

import pytest

from gpuless.control import Action, Remote
from tests.multiworld.device import lost_acts
from tests.multiworld.device.ranks import backends, has_bindings
from tests.multiworld.device.simulated import Cluster

assert has_bindings  # named in the marks of ``backends``
ILLEGAL_ADDRESS = 700


@pytest.mark.parametrize("backend", backends()[:1])  # stock torch's own watchdog ends the process: see the refusals
def test_all_worlds_on_it_end_and_one_on_gloo_goes_on(members: Cluster) -> None:
    loser, other = workers = [members.start(lost_acts.loses_its_device, rank) for rank in range(2)]
    for worker in workers:
        assert worker.recv() == "ready"
    Remote(members.control, loser.pid).inject("cudaStreamWaitEvent", Action.FAIL, ILLEGAL_ADDRESS, times=1)
    for worker in workers:
        worker.send("go")
    lost, told = loser.result(90), other.result(90)
    assert lost["errors"] == [("DeviceFailed", name, "cuda:0") for name in ("first", "second")]
    assert lost["heard"] == [("DeviceLost", "second"), ("WorldBroken", "second")]
    (first, *_), (second, world, what) = told["errors"]  # a small send may be over before the loss
    assert first in ("PeerLost", "none"), told["errors"]
    assert (second, world) == ("PeerLost", "second"), told["errors"]
    assert "CUDA error 700" in what
    assert told["heard"] == [("WorldBroken", "second")]
