"""Programs whose own code shares torch's NCCL groups: a launch that fails in one group must not touch another one.

NCCL keeps the groups of its calls by thread: one that an error leaves open swallows the operations of all other groups
of torch's that this thread uses. Multiworld's drivers launch each world's operations in a thread of its own.
"""

from __future__ import annotations

import pytest

from gpuless.control import Action
from multiworld.lab.workers import Worker
from tests.multiworld.faults import torch_groups
from tests.multiworld.faults.scene import CALM, Scene
from tests.multiworld.faults.test_nccl_failures import LAUNCHES, REMOTE_ERROR

pytestmark = pytest.mark.only_rows("torch-nccl (simulated)", "it is about torch's own groups, with injected failures")

WORLD = "struck"


@pytest.mark.parametrize("operation", torch_groups.OPERATIONS)
def test_a_launch_fails(scene: Scene, operation: str) -> None:
    """Its peer is dead: the caller gets ``DistBackendError``; another group of the thread goes on with right data."""
    us, other, peer = workers = scene.workers(3)
    places = [str(scene.options(worker)["device"]) for worker in workers]
    for name, members in ((CALM, (0, 1)), (WORLD, (0, 2))):
        for rank, member in enumerate(members):
            workers[member].run(torch_groups.open_group, name, scene.store, rank, places[member])
    assert _total(us, other) == [[3.0, 21.0]] * 2
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


def _total(*workers: Worker) -> list[list[float]]:
    running = [worker.start(torch_groups.total, CALM, rank) for rank, worker in enumerate(workers)]
    return [call.result(8.0) for call in running]
