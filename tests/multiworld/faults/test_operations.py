"""Operation x fault: a member is hit while the others wait in an operation that needs it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from multiworld import PeerLost, WorldBroken
from multiworld.lab.injector import Fired
from multiworld.lab.workers import Worker
from tests.multiworld.faults import acts
from tests.multiworld.faults.bounds import GONE_SECONDS, SILENT_SECONDS
from tests.multiworld.faults.operations import COLLECTIVES, LARGE, OPERATIONS, Row, rows
from tests.multiworld.faults.scene import CALM, DEATH, Scene, lost

WORLD, VICTIM = "struck", 2


def _killed(scene: Scene, victim: Worker) -> Fired:
    return scene.injector.kill(victim)


def _frozen(scene: Scene, victim: Worker) -> Fired:
    return scene.injector.freeze(victim)


def _exits(scene: Scene, victim: Worker) -> Fired:
    at = time.monotonic()
    victim.start(acts.end, 7)
    return scene.injector.died(victim, "exit without leaving", at, 7)


def _vanishes(scene: Scene, victim: Worker) -> Fired:
    at = time.monotonic()
    victim.start(acts.vanish, 9)
    return scene.injector.died(victim, "os._exit", at, 9)


def _leaves(scene: Scene, victim: Worker) -> Fired:
    at = time.monotonic()
    victim.run(acts.leave, WORLD)
    return scene.injector.record("leave", victim.name, at, "leave() returned")


def _aborts(scene: Scene, victim: Worker) -> Fired:
    at = time.monotonic()
    victim.run(acts.abort, WORLD)
    return scene.injector.record("abort", victim.name, at, "abort() returned")


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault, how it may be noticed, and in what time."""

    name: str
    strike: Callable[[Scene, Worker], Fired]
    how: frozenset[str]
    within: float

    def __str__(self) -> str:
        return self.name


KILL = Fault("kill", _killed, DEATH, GONE_SECONDS)
FREEZE = Fault("freeze", _frozen, frozenset({"silence", "reported"}), SILENT_SECONDS)
EXIT = Fault("exit", _exits, DEATH | {"left"}, GONE_SECONDS)
VANISH = Fault("vanish", _vanishes, DEATH, GONE_SECONDS)
LEAVE = Fault("leave", _leaves, frozenset({"left", "reported"}), GONE_SECONDS)
ABORT = Fault("abort", _aborts, frozenset({"reported"}), GONE_SECONDS)

#: A failure takes one path, whatever the operation and the length: those that wait in the middle of large payloads are
#: `test_member_is_hit_in_the_middle`'s.
FEW = [row for row in rows(("recv", "send", "all_reduce", "barrier")) if row.count != LARGE]
CASES = [
    *((row, fault) for row in rows() if row.count != LARGE for fault in (KILL, FREEZE)),
    *((row, fault) for row in FEW for fault in (EXIT, VANISH, LEAVE, ABORT)),
]


@pytest.mark.parametrize(("row", "fault"), CASES, ids=lambda value: str(value))
def test_member_is_hit_while_others_wait(scene: Scene, row: Row, fault: Fault) -> None:
    _hit(scene, row, fault, acts.operate)


@pytest.mark.parametrize("fault", [KILL, FREEZE, LEAVE, ABORT], ids=str)
@pytest.mark.parametrize("row", FEW, ids=str)
def test_member_is_hit_while_others_wait_in_threads(scene: Scene, row: Row, fault: Fault) -> None:
    _hit(scene, row, fault, acts.operate_in_thread)


def _hit(scene: Scene, row: Row, fault: Fault, operate: Callable[..., Any]) -> None:
    a, b, victim = members = scene.workers(3)
    scene.join(CALM, [a, b])
    scene.join(WORLD, members)
    scene.everywhere(members, acts.watch_events)
    waiting = [worker.start(operate, WORLD, row, VICTIM) for worker in (a, b)]
    for worker in (a, b):
        worker.wait_for("operating")
    fired = fault.strike(scene, victim)
    failures = _all_lost([call.outcome() for call in waiting], row, fault, fired)
    assert [str(f.with_context(operation=None)) for f in failures] == [str(f) for f in scene.broken(WORLD, [a, b])]
    scene.works(CALM, [a, b])
    for worker in (a, b):
        broken = worker.run(acts.events_of, WorldBroken)
        assert [e.world for e in broken] == [WORLD]
    again = a.start(operate, WORLD, row, VICTIM).outcome()
    assert isinstance(again.error, PeerLost), "an operation on a broken world raises its first cause at once"
    assert again.error.operation is not None


def _all_lost(outcomes: list, row: Row, fault: Fault, fired: Fired) -> list[PeerLost]:  # type: ignore[type-arg]
    failures = [lost(outcome, WORLD, VICTIM, fault.within, fired, set(fault.how)) for outcome in outcomes]
    for rank, failure in enumerate(failures):
        assert (failure.rank, failure.generation) == (rank, 1)
        assert failure.operation is not None
        assert row.operation in failure.operation
    return failures


#: Each is killed in the middle; silence is found by a clock that knows of no operation.
MIDDLE = [operation.name for operation in COLLECTIVES if operation.by_length] + ["recv", "send"]
_SILENCE = pytest.mark.nightly("the same operation with kill, and freeze with all_reduce, recv and send")


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        *((name, KILL) for name in MIDDLE),
        *(
            pytest.param(name, FREEZE, marks=() if name in ("all_reduce", "recv", "send") else _SILENCE)
            for name in MIDDLE
        ),
    ],
    ids=str,
)
def test_member_is_hit_in_the_middle(scene: Scene, name: str, fault: Fault) -> None:
    """The payload is on its way: collectives go round with 16 MB each, then one member is hit."""
    a, b, victim = members = scene.workers(3)
    scene.join(CALM, [a, b])
    scene.join(WORLD, members)
    row = Row(name, LARGE)
    running = [worker.start(*_endless(row, rank)) for rank, worker in enumerate(members)]
    victim.wait_for("going round")
    fired = fault.strike(scene, victim)
    for call in running[:2]:
        lost(call.outcome(), WORLD, VICTIM, fault.within, fired, set(fault.how))
    scene.works(CALM, [a, b])


def _endless(row: Row, rank: int) -> tuple:  # type: ignore[type-arg]
    if OPERATIONS[row.operation].collective:
        return acts.operate_for_ever, WORLD, row, 0
    mirror = {"send": "recv", "recv": "send"}[row.operation]
    return (
        (acts.operate_for_ever, WORLD, row, VICTIM)
        if rank != VICTIM
        else (acts.serve_all, WORLD, Row(mirror, row.count))
    )
