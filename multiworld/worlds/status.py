"""Worlds and processes as frozen data, for those who look from outside."""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from multiworld.config import WorldState
from multiworld.events import Event
from multiworld.session.counters import History

if TYPE_CHECKING:
    from multiworld.worlds.world import World  # which loads torch, and `multiworld top` does not


@dataclass(frozen=True, slots=True)
class WorldStatus:
    """One world of a process. ``lanes`` says how its large payloads go to how many peers.

    ``state`` is a ``WorldState``, or ``"joining"`` or ``"given up"`` of a world that a supervisor keeps. ``ready`` is
    True if it is active and no member has left.
    """

    name: str
    rank: int
    size: int
    generation: int
    state: str
    failure: str = ""
    lanes: str = ""
    ready: bool = False


@dataclass(frozen=True, slots=True)
class ProcessStatus:
    """One process, at a time in seconds since the epoch. A status file is written every ``interval`` seconds."""

    pid: int
    name: str
    at: float
    worlds: tuple[WorldStatus, ...]
    events: tuple[str, ...]
    ready: bool
    interval: float = 0.0

    @property
    def stale(self) -> bool:
        """True if the process has stopped writing its status."""
        return time.time() - self.at > 3 * self.interval + 1.0


def is_ready(world: World) -> bool:
    """Tell whether a world is active with all its members, as far as is known."""
    return world.state is WorldState.ACTIVE and not world.departed


def world_status(world: World) -> WorldStatus:
    """Describe a world that was joined."""
    failure = world.failure
    text = "" if failure is None else f"{type(failure).__name__}: {failure.what}"
    lanes = Counter(world.member.session.bridge.ways().values())
    ways = ", ".join(f"{count} {way}" for way, count in sorted(lanes.items()))
    place = world.name, world.world_rank, world.config.size, world.generation
    return WorldStatus(*place, world.state.value, text, ways, is_ready(world))


def process_status(worlds: Iterable[WorldStatus], history: History) -> ProcessStatus:
    """Describe this process, whose worlds these are."""
    found, name = tuple(worlds), Path(sys.argv[0]).name or "python"
    events = tuple(map(_event_line, tuple(history.recent)))
    return ProcessStatus(os.getpid(), name, time.time(), found, events, all(world.ready for world in found))


def _event_line(event: Event) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(event.at))
    failure = getattr(event, "failure", None)
    what = "" if failure is None else f": {failure.what}"
    where = f" {event.world} generation {event.generation}" if event.world else ""
    return f"{at} {type(event).__name__}{where}{what}"
