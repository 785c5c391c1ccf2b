"""Programs whose own code shares torch's NCCL groups: a launch that fails in one group must not touch another one.

NCCL keeps the groups of its calls by thread: one that an error leaves open swallows the operations of all other groups
of torch's that this thread uses. Multiworld's drivers launch each world's operations in a thread of its own.
"""

from __future__ import annotations

import pytest

from gpuless.control import Action, Remote
from multiworld.lab.workers import Worker
from tests.multiworld.faults import torch_groups
from tests.multiworld.faults.scene import CALM, Scene
from tests.multiworld.faults.test_nccl_failures import LAUNCHES, REMOTE_ERROR
from tests.multiworld.procs import wait_until

pytestmark = pytest.mark.only_rows("torch-nccl (simulated)", "it is about torch's own groups, with injected failures")

WORLD = "struck"
#: before 2.6 the wait has no default that is any use
NON_BLOCKING = {"TORCH_NCCL_USE_COMM_NONBLOCKING": "1", "TORCH_NCCL_NONBLOCKING_TIMEOUT": "30"}
#: abort() itself waits ten seconds at most
ABORT_SECONDS = 15.0


@pytest.mark.parametrize("operation", torch_groups.OPERATIONS)
def test_a_launch_fails(scene: Scene, operation: str) -> None:
    """Its peer is dead: the caller gets ``DistBackendError``; another group of the thread goes on with right data."""
    us, other, peer = scene.workers(3)
    _open_groups(scene, us, other, peer)
    running = [worker.start(torch_groups.attempt, WORLD, operation, rank) for rank, worker in enumerate((us, peer))]
    assert [call.result() for call in running] == ["", ""]
    scene.injector.kill(peer)
    with scene.imitation(us) as remote:
        for site in LAUNCHES:
            remote.inject(site, Action.FAIL, REMOTE_ERROR)
        raised = us.run(torch_groups.attempt, WORLD, operation, 0)
        remote.lift(*LAUNCHES)
    assert _total(us, other) == [[3.0, 21.0]] * 2, "the operation of another group is swallowed"
    assert raised == "DistBackendError"


@pytest.mark.parametrize("variables", [{}, NON_BLOCKING], ids=["blocking", "non-blocking"])
def test_a_shutdown_is_aborted(scene: Scene, variables: dict[str, str]) -> None:
    """Its peer is dead, so that it waits for it: an abort by another thread ends that, and another group goes on."""
    us, other, peer = [scene.worker(env=variables) for _ in range(3)]
    _open_groups(scene, us, other, peer)
    running = [worker.start(torch_groups.attempt, WORLD, "all_reduce", rank) for rank, worker in enumerate((us, peer))]
    assert [call.result() for call in running] == ["", ""]
    scene.injector.kill(peer)
    us.run(torch_groups.start_shutdown, WORLD)
    with scene.imitation(us) as remote:
        ends = lambda: us.run(torch_groups.is_shut_down, WORLD, 0.0) or _finalizes(remote)  # noqa: E731
        wait_until(ends, ABORT_SECONDS, "the shutdown does not come to its end")
        us.start(torch_groups.abort, WORLD).result(ABORT_SECONDS)
        assert us.run(torch_groups.is_shut_down, WORLD, ABORT_SECONDS)
        assert _total(us, other) == [[3.0, 21.0]] * 2
        assert not remote.counters().misused


def _open_groups(scene: Scene, us: Worker, other: Worker, peer: Worker) -> None:
    """Open one group of ``us`` and ``other``, and another one of ``us`` and ``peer``."""
    for name, members in ((CALM, (us, other)), (WORLD, (us, peer))):
        for rank, member in enumerate(members):
            member.run(torch_groups.open_group, name, scene.store, rank, str(scene.options(member)["device"]))
    assert _total(us, other) == [[3.0, 21.0]] * 2


def _finalizes(remote: Remote) -> bool:
    return remote.counters().sites["ncclCommFinalize"].calls > 0


def _total(*workers: Worker) -> list[list[float]]:
    running = [worker.start(torch_groups.total, CALM, rank) for rank, worker in enumerate(workers)]
    return [call.result(8.0) for call in running]
