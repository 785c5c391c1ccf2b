"""A world that breaks while one of its operations is under way, and another world that stays healthy."""

from __future__ import annotations

import datetime
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import fake
import torch
from world import TIMEOUT, TorchObject, World, settle

_PATIENCE = 5.0  # seconds for one call of an application


@dataclass
class Breakage:
    """A broken world and the observations of it so far."""

    sick: World
    healthy: World
    work: TorchObject
    detail: dict[str, object] = field(default_factory=dict)

    def look_at_other_world(self) -> bool:
        """Run the healthy world's next operation; say whether it was launched, and returned."""
        return launches(self.healthy, self.detail) and self.detail["other world"] == "returned"


def launches(healthy: World, detail: dict[str, object]) -> bool:
    """Run a healthy world's next operation; say whether it was launched."""
    before = fake.launched()
    detail["other world"] = answer(lambda: healthy.run("all_reduce"))
    detail["other launched"] = fake.launched() - before
    return bool(detail["other launched"])


def pair(backend: str = "classic", timeout: datetime.timedelta = TIMEOUT) -> tuple[World, World]:
    """Return two worlds that have a communicator; the first one with its own limit."""
    worlds = World(backend, timeout), World(backend)
    for world in worlds:
        world.run("all_reduce")
    return worlds


def raising(got: object) -> str:
    return {"returned": "NO_EXCEPTION", "no answer": "STALLED"}.get(str(got), "OK")


def break_world(
    inject: list[tuple[str, int, int]],
    within: float,
    broken: str,
    until: str,
    aborts: bool,
    timeout: float = 0,
    operation: str = "all_reduce",
    backend: str = "classic",
) -> Breakage:
    """Make two worlds, leave an operation pending on one of them, and let the faults strike.

    Args:
        inject: (site, action, code) for the broken world's communicator, set while the operation is pending.
        within: seconds in which the broken world has to be aborted (or `until` has to be hit).
        broken: which world breaks, the "first" (PyTorch gives it extra duties) or the "second".
        until: the fault's own site; waited for before the abort is.
        aborts: whether to wait for the broken world's communicator to be aborted.
        timeout: the broken world's own timeout in seconds; 0 for one that plays no part.
        operation: what is left pending; one that comes down to ncclAllReduce.
        backend: see `world.World`.
    """
    limit = datetime.timedelta(seconds=timeout) if timeout else TIMEOUT
    worlds = [World(backend, limit if broken == name else TIMEOUT) for name in ("first", "second")]
    for world in worlds:
        world.run("all_reduce")
    settle()
    if torch.__version__.startswith("2.0."):
        time.sleep(0.5)  # its watchdog looks as it starts, and then every ten seconds: the second look is meant
    sick, healthy = worlds if broken == "first" else worlds[::-1]
    (comm,) = sick.comms
    fake.inject("ncclAllReduce", fake.HOLD, comm=comm)
    breakage = Breakage(sick, healthy, sick.start(operation))
    for site, action, code in inject:
        fake.inject(site, action, code, comm=comm)
    if until:
        fake.await_true(lambda: fake.fired(until) > 0, within)
    breakage.detail["aborted after"] = fake.await_true(sick.is_aborted, within) if aborts else None
    breakage.detail["fired"] = {site: fake.fired(site) for site, _, _ in inject}
    return breakage


class Call:
    """A call of an application, in a thread of its own.

    The thread never ends: torch 2.6 keeps CUDA events in a cache of the thread that enqueued an operation, and
    its watchdog crashes on them when that thread has ended, which is not the subject of this probe.
    """

    def __init__(self, call: Callable[[], object]) -> None:
        self._call = call
        self._got = "no answer"
        self._done = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        try:
            self._call()
            self._got = "returned"
        except Exception as error:  # noqa: BLE001 - which exception it is is what is measured
            self._got = f"{type(error).__name__}: {error}"[:300]
        self._done.set()
        threading.Event().wait()

    def answer(self, seconds: float = _PATIENCE) -> str:
        """Return what the call gets: "returned", "no answer" in time, or the error."""
        self._done.wait(seconds)
        return self._got


def answer(call: Callable[[], object], seconds: float = _PATIENCE) -> str:
    return Call(call).answer(seconds)
