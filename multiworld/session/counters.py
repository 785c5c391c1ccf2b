"""Counters of the operations of a world, and of the events of a ``MultiWorld``; kept whether read or not."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from dataclasses import dataclass, field
from functools import partial

from multiworld.errors import PeerLost
from multiworld.events import Event, OwnStall, PeerRecovered, PeerSuspected, WorldBroken, WorldJoined, WorldLeft
from multiworld.matching.histogram import Histogram, operation_histograms

#: upper bounds of the buckets of joins, detections and outages, in seconds
LIFE_BOUNDS = (0.025, 0.05, 0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0, 60.0)
#: events that are kept for a later look
RECENT_EVENTS = 20


def _life_histograms() -> defaultdict[str, Histogram]:
    return defaultdict(partial(Histogram, LIFE_BOUNDS))


@dataclass(slots=True)
class Counters:
    """Operations of a world by name, the time that their callers waited, and bytes by the peer's world rank.

    The bytes include those of frames.
    """

    operations: Counter[str] = field(default_factory=Counter)
    sent: Counter[int] = field(default_factory=Counter)
    received: Counter[int] = field(default_factory=Counter)
    latencies: defaultdict[str, Histogram] = field(default_factory=operation_histograms)

    def add(self, other: Counters) -> None:
        self.operations.update(other.operations)
        self.sent.update(other.sent)
        self.received.update(other.received)
        for name, histogram in tuple(other.latencies.items()):
            self.latencies[name].add(histogram)


class History:
    """Counts of the events of a ``MultiWorld`` since it was made; the thread that publishes events writes it.

    Attributes:
        joining: seconds that joins and rejoins took, by world.
        detection: seconds from a silent peer's last sign of life to the break, by world.
        outage: seconds from a break to the return under a new generation, by world.
    """

    def __init__(self) -> None:
        self.joins: Counter[str] = Counter()
        self.breaks: Counter[tuple[str, str, str]] = Counter()
        self.suspicions: Counter[tuple[str, int]] = Counter()
        self.stalls = 0
        self.joining = _life_histograms()
        self.detection = _life_histograms()
        self.outage = _life_histograms()
        self.recent: deque[Event] = deque(maxlen=RECENT_EVENTS)
        self._last_heard: dict[tuple[str, int], float] = {}
        self._broken_at: dict[str, float] = {}

    def note(self, event: Event) -> None:
        """Count an event; blocks on nothing."""
        self.recent.append(event)
        if isinstance(event, WorldJoined):
            self._joined(event)
        elif isinstance(event, WorldBroken):
            self._broken(event)
        elif isinstance(event, PeerSuspected):
            self.suspicions[event.world, event.peer] += 1
            self._last_heard[event.world, event.peer] = event.monotonic - event.silence
        elif isinstance(event, PeerRecovered):
            self._last_heard.pop((event.world, event.peer), None)
        elif isinstance(event, WorldLeft):
            self._broken_at.pop(event.world, None)
            self._forget_silence(event.world)
        elif isinstance(event, OwnStall):
            self.stalls += 1

    def _joined(self, event: WorldJoined) -> None:
        self.joins[event.world] += 1
        self.joining[event.world].observe(event.seconds)
        broken_at = self._broken_at.pop(event.world, None)
        if broken_at is not None:
            self.outage[event.world].observe(event.monotonic - broken_at)

    def _broken(self, event: WorldBroken) -> None:
        lost = event.failure if isinstance(event.failure, PeerLost) else None
        how = "" if lost is None else lost.how.value
        self.breaks[event.world, type(event.failure).__name__, how] += 1
        self._broken_at[event.world] = event.monotonic
        for peer in () if lost is None else lost.ranks:
            heard = self._last_heard.get((event.world, peer))
            if heard is not None:
                self.detection[event.world].observe(event.monotonic - heard)
        self._forget_silence(event.world)

    def _forget_silence(self, world: str) -> None:
        for key in [key for key in self._last_heard if key[0] == world]:
            del self._last_heard[key]
