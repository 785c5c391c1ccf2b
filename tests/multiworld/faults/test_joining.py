"""Mistakes in a join are refused with the reason at once, and other worlds are untouched."""

from __future__ import annotations

import socket
from typing import Any

import pytest

from multiworld import InvalidArgument, RendezvousError, StaleGeneration, TcpStoreAddress
from tests.multiworld.faults import acts
from tests.multiworld.faults.bounds import AT_ONCE_SECONDS, GRACE_SECONDS
from tests.multiworld.faults.scene import CALM, Scene

WORLD = "struck"
SHORT = 2.0

pytestmark = pytest.mark.only_rows("gloo", "a join is refused before a backend is made")


def _refused(scene: Scene, call: Any, kind: type[Exception], words: str, within: float = AT_ONCE_SECONDS) -> Any:
    outcome = call.outcome()
    assert isinstance(outcome.error, kind), f"{outcome.error!r}, value {outcome.value!r}"
    assert words in str(outcome.error), str(outcome.error)
    assert outcome.seconds < within, f"it took {outcome.seconds:.2f} s"
    scene.injector.record("bad join", "", outcome.started, str(outcome.error.args))
    return outcome.error


def test_duplicate_rank(scene: Scene) -> None:
    a, b, intruder = scene.workers(3)
    scene.join(CALM, [a, b])
    scene.join(WORLD, [a, b])
    _refused(scene, scene.start_join(WORLD, intruder, 1, 2), RendezvousError, "rank 1 is taken")
    scene.works(WORLD, [a, b])
    scene.works(CALM, [a, b])


def test_duplicate_rank_while_joining(scene: Scene) -> None:
    a, b, intruder = scene.workers(3)
    first = scene.start_join(WORLD, a, 0, 2)
    scene.host.run(acts.await_claims, scene.store, WORLD, (0,))
    _refused(scene, scene.start_join(WORLD, intruder, 0, 2), RendezvousError, "rank 0 is taken")
    second = scene.start_join(WORLD, b, 1, 2)
    assert [first.result(), second.result()] == [(0, 1), (1, 1)]
    scene.works(WORLD, [a, b])


@pytest.mark.parametrize("complete", [True, False], ids=["complete", "joining"])
def test_wrong_size(scene: Scene, complete: bool) -> None:
    a, b, intruder = scene.workers(3)
    first = scene.start_join(WORLD, a, 0, 2)
    scene.host.run(acts.await_claims, scene.store, WORLD, (0,))
    running = [first] + ([scene.start_join(WORLD, b, 1, 2)] if complete else [])
    if complete:
        for call in running:
            call.result()
    _refused(scene, scene.start_join(WORLD, intruder, 2, 3), RendezvousError, "size")
    if not complete:
        scene.start_join(WORLD, b, 1, 2).result()
        first.result()
    scene.works(WORLD, [a, b])


def test_wrong_name(scene: Scene) -> None:
    """Two members under two names: each is told whom it waited for."""
    members = scene.workers(2)
    scene.join(CALM, members)
    running = [scene.start_join(f"name-{r}", x, r, 2, join_timeout=SHORT) for r, x in enumerate(members)]
    for rank, call in enumerate(running):
        _refused(scene, call, RendezvousError, f"rank {1 - rank} has not joined", SHORT + GRACE_SECONDS)
    scene.works(CALM, members)


def test_late_joiner(scene: Scene) -> None:
    """Too late for the others' deadline; all meet when they try again."""
    a, b = members = scene.workers(2)
    early = scene.start_join(WORLD, a, 0, 2, join_timeout=SHORT)
    _refused(scene, early, RendezvousError, "rank 1 has not joined", SHORT + GRACE_SECONDS)
    late = scene.start_join(WORLD, b, 1, 2)
    scene.start_join(WORLD, a, 0, 2).result()
    late.result()
    scene.works(WORLD, members)


def test_port_in_use(scene: Scene) -> None:
    """A port that another program has, which is no store: an error that says so, and no dead process."""
    a, _ = members = scene.workers(2)
    scene.join(CALM, members)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        store = TcpStoreAddress("127.0.0.1", taken.getsockname()[1], hosted=True)
        _refused(scene, scene.start_join(WORLD, a, 0, 2, store=store), RendezvousError, "in use", 5.0)
    scene.works(CALM, members)


def test_nobody_hosts_the_store(scene: Scene) -> None:
    a, _ = members = scene.workers(2)
    scene.join(CALM, members)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    store = TcpStoreAddress("127.0.0.1", port, hosted=False)
    call = scene.start_join(WORLD, a, 0, 2, store=store, join_timeout=SHORT)
    _refused(scene, call, RendezvousError, str(port), SHORT + GRACE_SECONDS)
    scene.works(CALM, members)


def test_stale_generation(scene: Scene) -> None:
    """A member that was frozen while the others replaced it does not get back in."""
    a, b, spare = scene.workers(3)
    scene.join(WORLD, [a, b])
    scene.injector.freeze(b)
    a.run(acts.await_break, WORLD)
    running = [a.start(acts.rejoin, WORLD), scene.start_join(WORLD, spare, 1, 2)]
    assert running[0].result() == 2
    assert running[1].result() == (1, 2)
    scene.injector.thaw(b)
    outcome = b.start(acts.rejoin, WORLD).outcome()
    assert isinstance(outcome.error, StaleGeneration), repr(outcome.error)
    assert outcome.error.current == 2
    scene.works(WORLD, [a, spare])


@pytest.mark.parametrize(
    ("rank", "size", "options"),
    [
        (2, 2, {}),
        (-1, 2, {}),
        (0, 0, {}),
        (0, 2, {"backend": "no-such-backend"}),
        (0, 2, {"store": "http://nowhere"}),
        (0, 2, {"device": "no-such-device"}),
    ],
    ids=["rank too high", "rank negative", "size 0", "backend", "store", "device"],
)
def test_impossible_arguments(scene: Scene, rank: int, size: int, options: dict[str, Any]) -> None:
    a, _ = members = scene.workers(2)
    scene.join(CALM, members)
    outcome = scene.start_join(WORLD, a, rank, size, **options).outcome()
    assert type(outcome.error).__name__ in {"InvalidArgument", "BackendUnavailable"}, repr(outcome.error)
    assert getattr(outcome.error, "world", None) == WORLD
    scene.injector.record("bad arguments", a.name, outcome.started, repr(outcome.error))
    scene.works(CALM, members)


def test_joined_twice(scene: Scene) -> None:
    a, _ = members = scene.workers(2)
    scene.join(WORLD, members)
    _refused(scene, scene.start_join(WORLD, a, 0, 2), InvalidArgument, "joined here already")
    scene.works(WORLD, members)
