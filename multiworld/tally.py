"""Counts of what a world did."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class Tally:
    """What a world did, over all its generations: operations by name, bytes by the peer's world rank, frames
    included."""

    operations: Counter[str] = field(default_factory=Counter)
    sent: Counter[int] = field(default_factory=Counter)
    received: Counter[int] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        self.operations.update(other.operations)
        self.sent.update(other.sent)
        self.received.update(other.received)
