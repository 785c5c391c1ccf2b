"""A plan of faults, drawn from a seed: the same seed and settings give the same plan, on every machine."""

from __future__ import annotations

import enum
import random
from dataclasses import dataclass, replace

from multiworld.errors import InvalidArgument

_QUIET_SECONDS = 2.0
_PAUSE_SECONDS = (1.0, 3.0)


class FaultKind(str, enum.Enum):
    """The kinds of faults, each with what must come of it."""

    KILL = "kill"  # SIGKILL; its worlds break, a new process takes its ranks
    STOP = "stop"  # SIGSTOP for longer than it may be silent; its worlds break, and come back with it
    SLOW = "slow"  # SIGSTOP for less than it may be silent; nothing breaks
    BUSY = "busy"  # holds the GIL for longer than it may be silent; nothing breaks
    LEAVE = "leave"  # leaves one world in good order and joins it again
    ABORT = "abort"  # breaks one world on purpose
    BAD_MESSAGE = "bad message"  # sends another length than is expected; both sides get an error, nothing breaks
    STRANGER = "stranger"  # a stranger connects to all its ports, talks nonsense and stays; nothing breaks


#: how often each is drawn
_WEIGHTS = dict(zip(FaultKind, (5, 3, 2, 2, 2, 2, 2, 3), strict=True))
#: seconds that the kinds with a duration last
_DURATIONS = {FaultKind.STOP: 2.5, FaultKind.SLOW: 0.25, FaultKind.BUSY: 2.0, FaultKind.STRANGER: 2.0}
BREAKING = frozenset({FaultKind.KILL, FaultKind.STOP, FaultKind.LEAVE, FaultKind.ABORT})


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault to come.

    Attributes:
        at: seconds from the start, at the earliest; a fault waits until the one before it is recovered from.
        second: another worker that is killed at the same time.
        world: the world concerned; empty where it is all of the worker's.
        seconds: how long it lasts, where it does.
    """

    at: float
    kind: FaultKind
    worker: int
    second: int | None = None
    world: str = ""
    seconds: float = 0.0

    @property
    def detail(self) -> str:
        lasting = f"for {self.seconds} s" if self.seconds else ""
        return lasting if self.second is None else ", ".join(filter(None, (lasting, f"and kill {self.second}")))


@dataclass(frozen=True, slots=True)
class Plan:
    """Workers, worlds (each with its members, by rank) and faults."""

    seed: int
    seconds: float
    workers: int
    worlds: dict[str, tuple[int, ...]]
    faults: tuple[Fault, ...]

    def worlds_of(self, worker: int) -> list[str]:
        return [name for name, members in self.worlds.items() if worker in members]


def draw_plan(seed: int, seconds: float, workers: int, worlds: int) -> Plan:
    """Draw a plan.

    Args:
        workers: how many, at least three.
        worlds: how many, at least two; of two to four members each.

    Raises:
        InvalidArgument: too few of something.
    """
    if workers < 3 or worlds < 2:
        raise InvalidArgument(what=f"chaos needs three workers and two worlds, not {workers} and {worlds}")
    draw = random.Random(seed)  # noqa: S311 - reproducible on purpose
    made = Plan(seed, seconds, workers, _draw_worlds(draw, workers, worlds), ())
    faults, at = [], _QUIET_SECONDS
    while at < seconds:
        kind = draw.choices(list(_WEIGHTS), weights=list(_WEIGHTS.values()))[0]
        busy = [worker for worker in range(made.workers) if made.worlds_of(worker)]
        worker = draw.choice(busy)
        one_world = kind in (FaultKind.LEAVE, FaultKind.ABORT, FaultKind.BAD_MESSAGE)
        world = draw.choice(made.worlds_of(worker)) if one_world else ""
        others = [other for other in busy if other != worker]
        second = draw.choice(others) if kind is FaultKind.KILL and draw.random() < 0.25 else None
        faults.append(Fault(at, kind, worker, second, world, _DURATIONS.get(kind, 0.0)))
        at = round(at + draw.uniform(*_PAUSE_SECONDS), 3)
    return replace(made, faults=tuple(faults))


def _draw_worlds(draw: random.Random, workers: int, worlds: int) -> dict[str, tuple[int, ...]]:
    """Worlds of some workers each; every worker is in one at least, as far as there are worlds enough."""
    found: dict[str, tuple[int, ...]] = {}
    unused = list(range(workers))
    draw.shuffle(unused)
    for number in range(worlds):
        size = draw.randint(2, min(4, workers - 1))
        first = [unused.pop()] if unused else []
        rest = [worker for worker in range(workers) if worker not in first]
        found[f"world-{number}"] = tuple(first + draw.sample(rest, size - len(first)))
    return found
