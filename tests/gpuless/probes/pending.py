"""An operation is under way when its world breaks; the watchdog has to deal with it."""

from __future__ import annotations

import threading
import time

import fake
from world import World

_PATIENCE = 5.0  # seconds for one call of an application on a broken or healthy world


def run(
    inject: list[list[object]],
    window: float = 3.0,
    within: float = 10.0,
    broken: str = "second",
    until: str = "",
    aborts: bool = True,
    raises: bool = True,
) -> tuple[str, dict[str, object]]:
    """Leave an all-reduce pending, break its world, watch the process.

    Args:
        inject: (site, action, code) for the broken world's communicator, set while the operation is pending.
        window: seconds the process has to stay alive after the fault was dealt with.
        within: seconds in which the broken world has to be aborted (or `until` has to be hit).
        broken: which world breaks, the "first" (PyTorch gives it extra duties) or the "second".
        until: the fault's own site; waited for before the abort is.
        aborts: whether the broken world's communicator has to be aborted at the end.
        raises: whether the broken world's next operation has to raise.
    """
    worlds = [World(), World()]
    for world in worlds:
        world.run("all_reduce")
    sick, healthy = worlds if broken == "first" else worlds[::-1]
    (comm,) = sick.comms
    fake.inject("ncclAllReduce", fake.HOLD, comm=comm)
    work = sick.start("all_reduce")
    for site, action, code in inject:
        fake.inject(site, action, code, comm=comm)
    if until:
        fake.await_true(lambda: fake.fired(until) > 0, within)
    took = fake.await_true(sick.is_aborted, within) if aborts else None
    detail: dict[str, object] = {"aborted after": took, "fired": {s: fake.fired(s) for s, _, _ in inject}}
    time.sleep(window)  # no event to wait for: what must not happen is an end of the process
    before = fake.launched()
    detail["other world"] = _answer(healthy)
    detail["other launched"] = fake.launched() - before
    detail["work"] = _state(work)
    detail["next call"] = _answer(sick)
    return _judge(detail, aborts, raises), detail


def _judge(detail: dict[str, object], aborts: bool, raises: bool) -> str:
    if detail["other world"] != "returned" or not detail["other launched"]:
        return "NOT_LAUNCHED"
    if aborts and detail["aborted after"] is None:
        return "NOT_ABORTED"
    if raises and detail["next call"] in {"returned", "no answer"}:
        return "NO_EXCEPTION" if detail["next call"] == "returned" else "STALLED"
    return "OK"


def _answer(world: World) -> str:
    """Return what an application's next operation gets: "returned", "no answer", or the error."""
    answer = ["no answer"]

    def call() -> None:
        try:
            world.run("all_reduce")
            answer[0] = "returned"
        except Exception as error:  # noqa: BLE001 - which exception it is is what is measured
            answer[0] = f"{type(error).__name__}: {error}"[:300]

    thread = threading.Thread(target=call, daemon=True)
    thread.start()
    thread.join(_PATIENCE)
    return answer[0]


def _state(work: object) -> str:
    try:
        return f"completed={work.is_completed()}"
    except Exception as error:  # noqa: BLE001 - which exception it is is what is measured
        return f"{type(error).__name__}: {error}"[:300]
