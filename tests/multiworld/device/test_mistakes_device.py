"""A world that is set up wrong ends with a typed error, and another one of the same processes goes on."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from gpuless.control import Action, Remote
from tests.multiworld.device import mistake_acts
from tests.multiworld.device.ranks import backends, has_bindings
from tests.multiworld.device.simulated import SECONDS, Cluster

assert has_bindings  # named in the marks of ``backends``
CREATIONS = "ncclCommInitRank", "ncclCommInitRankConfig"


def _ends_one_world(members: Cluster, mistake: str, what: str, remedy: str) -> None:
    workers = [members.start(mistake_acts.sets_up_wrong, rank, mistake) for rank in range(2)]
    with ExitStack() as stack:
        blocks = [stack.enter_context(Remote(members.control, worker.recv())) for worker in workers]
        for site in CREATIONS if mistake == "never made" else ():
            for block in blocks:
                block.inject(site, Action.HANG)
        for worker in workers:
            worker.send("go")
        found = [worker.result(SECONDS) for worker in workers]
    for rank, (kind, text, before, after, state) in enumerate(found):
        assert f"world 'wrong', generation 1, rank {rank}" in text, text
        assert what in text, text
        assert remedy in text or kind == "PeerLost", text  # the other member was first, and has told
        assert (before, after, state) == (2.0, 2.0, "active")
    assert "BackendFailed" in [kind for kind, *_ in found]


@pytest.mark.parametrize("backend", backends())
def test_two_ranks_on_one_device(members: Cluster) -> None:
    _ends_one_world(members, "one device", "ranks 0 and 1 use the same device", "NCCL_HOSTID")


@pytest.mark.parametrize("backend", backends()[:1])
def test_a_peer_with_another_driver(members: Cluster) -> None:
    _ends_one_world(members, "another driver", "'torch-nccl'", "the extra 'nccl' on every member or on none")


@pytest.mark.parametrize("backend", backends())
def test_a_communicator_that_is_not_made_in_time(members: Cluster) -> None:
    _ends_one_world(members, "never made", f"was not made within {mistake_acts.JOIN_SECONDS} s", "raise join_timeout=")
