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
@pytest.mark.parametrize("call", ["cudaStreamWaitEvent", "cudaEventRecord"], ids=["the driver's", "the caller's"])
def test_all_worlds_on_it_end_and_one_on_gloo_goes_on(members: Cluster, call: str) -> None:
    loser, other = workers = [members.start(lost_acts.loses_its_device, rank) for rank in range(2)]
    for worker in workers:
        assert worker.recv() == "ready"
    Remote(members.control, loser.pid).inject(call, Action.FAIL, ILLEGAL_ADDRESS, times=1)
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


@pytest.mark.parametrize("backend", backends()[:1])
def test_a_caller_that_takes_what_it_received_finds_it_lost(members: Cluster) -> None:
    """The world ends for both: nobody waits for a member that computes no more."""
    workers = [members.start(lost_acts.takes_on_a_lost_device, rank) for rank in range(2)]
    for worker in workers:
        assert worker.recv() == "ready"
    with Remote(members.control, workers[1].pid) as block:  # the first one is the driver's
        block.inject("cudaStreamWaitEvent", Action.FAIL, ILLEGAL_ADDRESS, after=1, times=1)
        for worker in workers:
            worker.send("go")
        ((told, *_), broken), (found, failure) = (worker.result(90) for worker in workers)
    assert (found, failure) == (("DeviceFailed", "w", "cuda:0"), "DeviceFailed")
    assert (told, broken) == ("PeerLost", "PeerLost")


@pytest.mark.parametrize("backend", backends()[:1])
def test_memory_that_was_taken_in_another_stream_is_freed_on_a_lost_device(members: Cluster) -> None:
    """To free it asks nothing of CUDA: the allocator's destructor would end the process with what that returns."""
    _, taker = (members.start(lost_acts.takes_in_another_stream, rank) for rank in range(2))
    assert taker.recv() == "taken"
    with Remote(members.control, taker.pid) as block:
        for call in ("cudaEventRecord", "cudaEventCreateWithFlags", "cudaEventQuery"):
            block.inject(call, Action.FAIL, ILLEGAL_ADDRESS)
        taker.send("go")
        assert taker.result(90) == [0.0, 1.0, 2.0, 3.0]
