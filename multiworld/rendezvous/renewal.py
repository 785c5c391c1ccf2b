"""Connections of the last generation that go on in the next one, between members that both have kept them.

Each member says in its claim which it has kept; so all know of the same ones, without a word between them. Nothing
tells how much of the last generation is still under way on them, nor whether a frame was cut. So a member sends a mark
before its first frame, and the other one drops what comes before that. The mark of a generation is made of the new
incarnation of its first member. Who knows that one has ended the last generation here, and sends nothing of it any
more. The mark is told to whoever was greeted before, with the same secret.
"""

from __future__ import annotations

import functools
import hmac
from collections.abc import Mapping, Sequence
from typing import Any

from multiworld.rendezvous.ledger import Claim
from multiworld.transport.lines import Lines


class HeldLanes:
    """Data connections that the engine of the last generation holds, and a forked child does not keep; their
    descriptors by rank."""

    def __init__(self, native: Any = None, descriptors: dict[int, int] | None = None) -> None:
        self._native, self.descriptors = native, descriptors or {}

    def pick(self, ranks: Mapping[int, int]) -> None:
        """Go on with the last ranks in ``ranks``, by new ones, and close the others."""
        picked = {new: self.descriptors.pop(old) for new, old in ranks.items()}
        self.close()
        self.descriptors = picked

    def detach(self) -> None:
        """Leave them to the caller, all at once."""
        self._part(close=False)

    def close(self) -> None:
        self._part(close=True)

    def _part(self, *, close: bool) -> None:
        descriptors, self.descriptors = self.descriptors, {}
        if descriptors:
            self._native.part_with(tuple(descriptors.values()), close)


class Kept:
    """Connections that were kept, by the rank of the member in the last generation.

    Args:
        last: the incarnation of rank 0 in it, which no other generation has.
        rank: ours in it.
    """

    def __init__(
        self, last: str = "", rank: int = 0, lanes: HeldLanes | None = None, lines: Lines | None = None
    ) -> None:
        self._last, self._rank = last, rank
        self._lanes, self._lines = lanes or HeldLanes(), lines or Lines()

    @property
    def _peers(self) -> set[int]:
        return self._lanes.descriptors.keys() & self._lines.socks.keys()

    def told(self) -> str:
        """Say in a claim which they are."""
        peers = self._peers
        return f"{self._last} {self._rank} {sum(map((1).__lshift__, peers)):x}" if peers else ""

    def among(self, claims: Sequence[Claim]) -> tuple[HeldLanes, Lines]:
        """Hand over those that have been kept on both sides, by the rank in ``claims``, and close the others."""
        peers, lanes, lines = self._peers, self._lanes, self._lines
        self._lanes, self._lines = HeldLanes(), Lines()
        ranks = {}
        for new, claim in enumerate(claims):
            last, old, kept = _told(claim.kept)
            if last == self._last and old in peers and kept >> self._rank & 1:
                ranks[new] = old
                peers.discard(old)
        lanes.pick(ranks)
        lines.pick(ranks)
        return lanes, lines

    def close(self) -> None:
        self._lanes.close()
        self._lines.close()


@functools.lru_cache(maxsize=1024)  # all members of a process read the same
def _told(said: str) -> tuple[str, int, int]:
    """What a claim says: the last generation, the rank in it, and the members by bits; nobody if it cannot be right."""
    try:
        last, rank, kept = said.split()
        return last, int(rank), max(0, int(kept, 16))
    except ValueError:
        return "", -1, 0


def mark_of(first: Claim, where: str, secret: bytes | None) -> bytes:
    """The mark of the generation that ``where`` tells, and ``first`` is the first member of."""
    return hmac.digest(secret or b"-", f"multiworld mark\n{where} {first.incarnation}".encode(), "sha256")
