"""Connections of the last generation that go on in the next one, between members that both have kept them.

Each member says in its claim which it has kept; so all know of the same ones, without a word between them. Nothing
tells how much of the last generation is still under way on them, nor whether a frame was cut. So a member sends a mark
before its first frame, and the other one drops what comes before that. The mark of a generation is made of the new
incarnation of its first member. Who knows that one has ended the last generation here, and sends nothing of it any
more. The mark is told to whoever was greeted before, with the same secret.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from multiworld.rendezvous.ledger import Claim
from multiworld.transport.line import Line


@dataclass(frozen=True, slots=True)
class HeldLane:
    """A data connection that the engine of the last generation holds, and a forked child does not keep."""

    native: Any
    peer: int
    descriptor: int

    def fileno(self) -> int:
        return self.descriptor

    def detach(self) -> None:
        self.native.part_with(self.peer, False)

    def close(self) -> None:
        self.native.part_with(self.peer, True)


@dataclass(frozen=True, slots=True)
class Pair:
    """The connections to one member."""

    lane: HeldLane
    control: Line

    def close(self) -> None:
        self.lane.close()
        self.control.close()


@dataclass(slots=True)
class Kept:
    """Connections that were kept, by the rank of the member in the last generation.

    Attributes:
        last: the incarnation of rank 0 in it, which no other generation has.
        rank: ours in it.
    """

    last: str = ""
    rank: int = 0
    pairs: dict[int, Pair] = field(default_factory=dict)

    def told(self) -> str:
        """Say in a claim which they are."""
        return f"{self.last} {self.rank} {sum(1 << peer for peer in self.pairs):x}" if self.pairs else ""

    def among(self, claims: Mapping[int, Claim]) -> dict[int, Pair]:
        """Hand over those that have been kept on both sides, by place, and close the others."""
        ranks = {place: self._rank_of(claim) for place, claim in claims.items()}
        found = {place: self.pairs.pop(rank) for place, rank in ranks.items() if rank in self.pairs}
        self.close()
        return found

    def _rank_of(self, claim: Claim) -> int:
        """The last rank of the member with this claim, if it has kept its connections to us; else -1."""
        try:
            last, rank, kept = claim.kept.split()
            return int(rank) if last == self.last and int(kept, 16) >> self.rank & 1 else -1
        except ValueError:
            return -1

    def close(self) -> None:
        while self.pairs:
            self.pairs.popitem()[1].close()


def mark_of(first: Claim, where: str, secret: bytes | None) -> bytes:
    """The mark of the generation that ``where`` tells, and ``first`` is the first member of."""
    return hmac.digest(secret or b"-", f"multiworld mark\n{where} {first.incarnation}".encode(), "sha256")
