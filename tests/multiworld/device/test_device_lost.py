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
    workers = [members.start(lost_acts.loses_its_device, rank) for rank in range(2)]
    for worker in workers:
        assert worker.recv() == "ready"
    for block in (Remote(members.control, worker.pid) for worker in workers):
        block.inject("cudaStreamWaitEvent", Action.FAIL, ILLEGAL_ADDRESS, times=1)
    for worker in workers:
        worker.send("go")
    for worker in workers:
        found = worker.result(90)
        assert found["errors"] == [("DeviceFailed", name, "cuda:0") for name in ("first", "second")]
        assert found["heard"] == [("DeviceLost", "second"), ("WorldBroken", "second")]
