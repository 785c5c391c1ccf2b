"""The process that hosts the store: frozen or killed, while worlds stand and while they are joined."""

from __future__ import annotations

import time

from multiworld import RendezvousError, TcpStoreAddress
from tests.multiworld.faults import acts
from tests.multiworld.faults.bounds import GRACE_SECONDS, JOIN_SECONDS
from tests.multiworld.faults.scene import CALM, Scene

WORLD = "struck"
SHORT = 2.0


def test_killed_under_standing_worlds(scene: Scene) -> None:
    """Worlds that stand do not need it; joining does, and says so at its deadline at the latest."""
    a, b = members = scene.actors(2)
    scene.join(WORLD, members)
    store = scene.store
    scene.injector.kill(scene.host)
    scene.works(WORLD, members, 5)
    started = time.monotonic()
    running = [scene.start_join("new", x, r, 2, store=store, join_timeout=SHORT) for r, x in enumerate((a, b))]
    for call in running:
        assert isinstance(call.outcome().error, RendezvousError)
    assert time.monotonic() - started < SHORT + GRACE_SECONDS
    scene.works(WORLD, members)


def test_frozen_under_standing_worlds(scene: Scene) -> None:
    """Its silence holds nothing up but joining, and joining goes on when it does."""
    members = scene.actors(2)
    scene.join(WORLD, members)
    scene.injector.freeze(scene.host)
    scene.works(WORLD, members, 5)
    running = [scene.start_join("new", actor, rank, 2) for rank, actor in enumerate(members)]
    scene.works(WORLD, members, 20)
    scene.injector.thaw(scene.host)
    for call in running:
        call.result(JOIN_SECONDS + 5)
    scene.works("new", members)
    scene.works(WORLD, members)


def test_frozen_for_longer_than_a_join_may_take(scene: Scene) -> None:
    """The deadline of ``join`` holds even though the store never answers."""
    a, _ = members = scene.actors(2)
    scene.join(CALM, members)
    scene.injector.freeze(scene.host)
    call = scene.start_join(WORLD, a, 0, 2, join_timeout=SHORT)
    outcome = call.outcome(SHORT + 10)
    assert isinstance(outcome.error, RendezvousError), repr(outcome.error)
    assert outcome.seconds < SHORT + GRACE_SECONDS
    scene.works(CALM, members)


def test_member_hosts_it_and_is_killed(scene: Scene) -> None:
    """Rank 0 hosts the store and dies: its worlds break, that of the others goes on, and another store serves."""
    host, a, b = members = scene.actors(3)
    address = host.run(acts.serve)
    store = TcpStoreAddress(address.host, address.port)
    scene.join(WORLD, members, store=store)
    scene.join(CALM, [a, b], store=TcpStoreAddress(address.host, address.port, hosted=False))
    scene.injector.kill(host)
    scene.works(CALM, [a, b])
    scene.join("after", [a, b])
    scene.works("after", [a, b])
