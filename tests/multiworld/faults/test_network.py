"""The network between two hosts: cut both ways, one way, cut and healed, half-open; proven with packets of our own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from multiworld import Heartbeat, PeerLost, RendezvousError, WorldState
from multiworld.lab.injector import proven
from multiworld.lab.workers import Worker
from tests.multiworld.faults import acts
from tests.multiworld.faults.bounds import GRACE_SECONDS, SILENT_SECONDS
from tests.multiworld.faults.network import RIGHT, Namespaces, Network, established, missing, namespaces
from tests.multiworld.faults.operations import LARGE, SMALL, Row
from tests.multiworld.faults.scene import CALM, Scene, lost

WORLD = "struck"
SHORT = 3.0
#: probing takes up to two periods of silence of its own
CUT_SECONDS = SILENT_SECONDS + 0.6
PATIENT = Heartbeat(interval=0.2, suspect_after=0.6, lost_after=10.0)

pytestmark = [pytest.mark.ip, pytest.mark.skipif(missing() is not None, reason=missing() or "")]


@dataclass(frozen=True, slots=True)
class TwoHosts:
    """Ranks 0 and 1 on the left host, rank 2 on the right one, the store on the left."""

    scene: Scene
    net: Network
    left: tuple[Worker, Worker]
    right: Worker

    @property
    def members(self) -> list[Worker]:
        """In the order of their ranks."""
        return [*self.left, self.right]


@pytest.fixture(scope="module")
def sides() -> Iterator[Namespaces]:
    with namespaces() as made:
        yield made


@pytest.fixture
def hosts(scene: Scene, sides: Namespaces) -> TwoHosts:
    net = sides.populated(scene.pool, scene.injector)
    scene.host_at(net.left.namespace, net.left.address)
    a, b = (scene.worker(network=net.left.namespace) for _ in range(2))
    right = scene.worker(network=net.right.namespace)
    scene.join(CALM, [a, b])
    return TwoHosts(scene, net, (a, b), right)


CUTS = {"both ways": (True, True), "to the left": (True, False), "to the right": (False, True)}


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("row", [Row("recv", SMALL), Row("all_reduce", SMALL), Row("all_reduce", LARGE)], ids=str)
def test_cut(hosts: TwoHosts, cut: str, row: Row) -> None:
    """Both sides notice, whichever way is cut; the world among those on one host goes on; all come back when healed."""
    scene, (a, b), right = hosts.scene, hosts.left, hosts.right
    scene.join(WORLD, hosts.members)
    waiting = [worker.start(acts.operate, WORLD, row, 2) for worker in (a, b)]
    for worker in (a, b):
        worker.wait_for("operating")
    watching = right.start(acts.await_break, WORLD)
    right.wait_for("watching")
    to_left, to_right = CUTS[cut]
    hosts.net.cut(to_left=to_left, to_right=to_right)
    fired = scene.injector.fired[-1]
    # Where only answers are lost, both sides are silent for each other, and the first to notice tells all.
    accused = 2 if cut == "both ways" else None
    for call in waiting:
        lost(call.outcome(), WORLD, accused, CUT_SECONDS, fired, {"silence", "reported"})
    event = watching.result()
    assert isinstance(event.failure, PeerLost)
    assert event.monotonic - fired.at <= CUT_SECONDS
    scene.works(CALM, [a, b])
    hosts.net.heal()
    (generation,) = set(scene.everywhere(hosts.members, acts.rejoin, WORLD))
    assert generation > 1  # 3 if a peer does not answer at once after the healing, and counts as gone again
    scene.works(WORLD, hosts.members)


@pytest.mark.only_rows("gloo", "the imitated NCCL moves data through shared memory, which no cut of a network cuts")
def test_cut_and_healed_in_time(hosts: TwoHosts) -> None:
    """Shorter than the world's patience: nothing breaks and nothing is lost."""
    scene, (a, _), right = hosts.scene, hosts.left, hosts.right
    scene.join(WORLD, hosts.members, heartbeat=PATIENT)
    going = [worker.start(acts.ring, WORLD, 200) for worker in hosts.members]
    hosts.net.cut(to_left=True, to_right=True)
    time.sleep(0.5)  # the cut is meant to last
    hosts.net.heal()
    for call in going:
        call.result(30)
    assert [worker.run(acts.standing, WORLD).state for worker in (a, right)] == [WorldState.ACTIVE] * 2


@pytest.mark.only_rows("gloo", "the imitated NCCL moves data through shared memory, which no cut of a network cuts")
def test_halves_never_share_a_generation(hosts: TwoHosts) -> None:
    """The half with the store goes on with another size; the other one cannot, then or after the healing."""
    scene, (a, b), right = hosts.scene, hosts.left, hosts.right
    scene.join(WORLD, hosts.members)
    hosts.net.cut(to_left=True, to_right=True)
    for worker in hosts.members:
        worker.run(acts.await_break, WORLD)
    alone = right.start(acts.rejoin, WORLD, {"timeout": SHORT})
    assert set(scene.everywhere([a, b], acts.rejoin, WORLD, {"size": 2})) == {2}
    scene.works(WORLD, [a, b])
    outcome = alone.outcome(SHORT + 15)
    assert isinstance(outcome.error, RendezvousError), repr(outcome.error)
    assert outcome.seconds < SHORT + GRACE_SECONDS
    hosts.net.heal()
    again = right.start(acts.rejoin, WORLD, {"timeout": SHORT}).outcome(SHORT + 15)
    assert again.error is not None
    assert right.run(acts.standing, WORLD).generation == 1
    scene.works(WORLD, [a, b])


@pytest.mark.only_rows("gloo", "the imitated NCCL moves data through shared memory, which no cut of a network cuts")
@pytest.mark.parametrize("healed", [False, True], ids=["stays cut", "healed"])
def test_half_open(hosts: TwoHosts, healed: bool) -> None:
    """The right host dies while it is cut off: no end of file ever comes, the kernel still holds the connections."""
    scene, (a, b), right = hosts.scene, hosts.left, hosts.right
    heartbeat = replace(Heartbeat(), lost_after=1.5)
    scene.join(WORLD, hosts.members, heartbeat=heartbeat)
    waiting = [worker.start(acts.operate, WORLD, Row("recv", SMALL), 2) for worker in (a, b)]
    for worker in (a, b):
        worker.wait_for("operating")
    hosts.net.cut(to_left=True, to_right=True)
    fired = scene.injector.fired[-1]
    scene.injector.kill(right)
    open_ones = proven(lambda: str(established(a.pid, RIGHT) or "") or None, "half-open connections")
    scene.injector.record("half-open", "left", time.monotonic(), f"{open_ones} connections to a dead process")
    if healed:
        hosts.net.heal()
    for call in waiting:
        lost(call.outcome(), WORLD, 2, CUT_SECONDS + 1.0, fired, {"silence", "eof", "reported"})
    scene.works(CALM, [a, b])


@pytest.mark.only_rows("gloo", "the imitated NCCL moves data through shared memory, which no cut of a network cuts")
@pytest.mark.parametrize("healed", [False, True], ids=["stays cut", "healed"])
def test_cut_while_joining(hosts: TwoHosts, healed: bool) -> None:
    """The right host cannot be reached while all join: an error at the deadline, or the world once it is healed."""
    scene, (a, b), right = hosts.scene, hosts.left, hosts.right
    timeout = 15.0 if healed else SHORT
    hosts.net.cut(to_left=True, to_right=True)
    members = enumerate(hosts.members)
    running = [scene.start_join(WORLD, worker, rank, 3, join_timeout=timeout) for rank, worker in members]
    scene.works(CALM, [a, b], 20)
    if healed:
        hosts.net.heal()
        assert [call.result(20)[0] for call in running] == [0, 1, 2]
        scene.works(WORLD, hosts.members)
        return
    for call in running:
        outcome = call.outcome(SHORT + 15)
        assert isinstance(outcome.error, RendezvousError), repr(outcome.error)
        assert outcome.seconds < SHORT + GRACE_SECONDS
    scene.works(CALM, [a, b])
    assert right.run(acts.held).threads < 10
