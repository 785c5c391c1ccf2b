"""The agreement on who goes on, when a world does with fewer members or with others.

The candidates of a generation are the members of the last one, and newcomers that were invited. Each claims its
identity. The first candidate that is left collects the claims, and closes the roster once all have claimed or are gone.
The roster is written once, with a compare-and-set: whoever is not on it is out for good, and two parts of a world never
both go on. The store decides between them: the part whose roster comes first is the one that goes on.

Where the members of a roster cannot meet, since another one was lost meanwhile, they are the candidates of the next
generation. A roster that nobody closes is closed with nobody before the next generation is opened, so that all members
find the same candidates there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from multiworld.errors import StaleGeneration, TooFewMembers
from multiworld.liveness.neighbour import Presence
from multiworld.rendezvous.ledger import BY_ROSTER, Claim, Ledger, Opened

#: when to look for the first time, and again, whether those that are waited for still run
FIRST_PROBE, PROBE_SECONDS = 0.05, 0.25


@dataclass(frozen=True, slots=True)
class Roll:
    """The candidates for the generations after ``after``.

    Attributes:
        members: of the last generation, in the order of ranks.
        guests: newcomers to invite; earlier invitations count.
        gone: identities of members that are known to be lost.
        min_size: of the world.
    """

    after: int
    members: tuple[Claim, ...]
    guests: tuple[Claim, ...] = ()
    gone: frozenset[str] = field(default_factory=frozenset)
    min_size: int = 1


class Agreement:
    """Our part in it.

    Args:
        identity: ours.
        presence: tells what is seen of the member that made a claim, with a question to it if the second argument says
            so.
        patience: seconds after which a member that is not heard is lost, as everywhere.
    """

    def __init__(self, roll: Roll, identity: str, presence: Callable[[Claim, bool], Presence], patience: float) -> None:
        self._roll, self._identity, self._presence, self._patience = roll, identity, presence, patience
        #: when it was first seen that a member is still, by identity
        self._still: dict[str, float] = {}
        self._probes = 0
        self._gone = set(roll.gone) - {identity}
        #: claims by generation and identity
        self._came: dict[int, dict[str, Claim]] = {}
        # Later with more members: they take longer, and each look costs a third of a millisecond on a core of all.
        self._next_probe = time.monotonic() + min(PROBE_SECONDS, FIRST_PROBE * (1 + len(roll.members) / 8))

    def candidates(self, ledger: Ledger, generation: int, seen: Opened | None) -> list[Claim]:
        """Find the candidates of ``generation``, the same on all of them; nobody if a rejoin has opened it.

        Args:
            seen: what was there of that generation just now, if it was looked at.

        Raises:
            StaleGeneration: the others have gone on without us.
            TooFewMembers: ``min_size`` are not left.
        """
        found: Sequence[Claim] = ()
        for earlier in range(self._roll.after + 1, generation):
            found = ledger.members(earlier) or found
            self.check(found, earlier)
        after = self._roll.after
        # Last: it is there once the earlier ones are deleted.
        roster, guests, size = seen or ledger.opened(generation, after)
        self.check(roster, generation)
        if size is None:
            size = ledger.agree_size(generation, BY_ROSTER)
        if size != BY_ROSTER:
            self.check(ledger.members(generation), generation)
            return []
        if guests is None:
            guests = ledger.invite(after, self._roll.guests)
        self._probe(found, now=True)  # they could not all meet
        return [*found] or [*self._roll.members, *guests]

    def check(self, roster: Sequence[Claim], generation: int) -> None:
        """Raise, as ``candidates`` does, for a roster that is not for us; an empty one says nothing."""
        if roster and self._identity not in map(attrgetter("identity"), roster):
            raise StaleGeneration(
                what=f"the world went on without this process in generation {generation}", current=generation
            )
        if roster and len(roster) < self._roll.min_size:
            what = f"{len(roster)} members are left, and min_size is {self._roll.min_size}"
            raise TooFewMembers(what=what, left=len(roster))

    def leads(self, candidates: Sequence[Claim]) -> bool:
        """Tell whether the roster is for us to close, as far as we know."""
        return self._present(candidates)[0].identity == self._identity

    def wait(self, ledger: Ledger, generation: int, candidates: Sequence[Claim], seconds: float) -> bool:
        """Wait for what the next look needs, for ``seconds`` at most; False at once where the store cannot tell."""
        if not self.leads(candidates):
            return ledger.await_roster(generation, seconds)
        missing = self._not_seen(generation, self._present(candidates))
        return ledger.await_claims(generation, [claim.identity for claim in missing], seconds)

    def look(self, ledger: Ledger, generation: int, candidates: Sequence[Claim]) -> tuple[Sequence[Claim] | None, int]:
        """Look for the roster of ``generation``, and close it where that is for us to do; None while it is open. The
        newest generation after that: where it is another one, others may have gone on, and forgotten another roster."""
        roster, newest = ledger.look(generation)
        if roster is not None:
            return roster, newest
        present = self._present(candidates)
        if not self.leads(candidates):
            self._probe(present[:1])
            return None, newest
        came = self._came.setdefault(generation, {})
        came |= ledger.claims(generation, [claim.identity for claim in self._not_seen(generation, present)])
        missing = self._not_seen(generation, present)
        if not missing:
            return ledger.close_roster(generation, [came[claim.identity] for claim in present])
        self._probe(missing)
        return None, newest

    def missing(self, ledger: Ledger, generation: int, candidates: Sequence[Claim]) -> list[Claim]:
        """Find those that are waited for."""
        present = self._present(candidates)
        came = ledger.claims(generation, [claim.identity for claim in present])
        return [claim for claim in present if claim.identity not in came]

    def _not_seen(self, generation: int, present: Sequence[Claim]) -> list[Claim]:
        """Those whose claims we have not seen there."""
        came = self._came.get(generation, {})
        return [claim for claim in present if claim.identity not in came]

    def _present(self, candidates: Sequence[Claim]) -> list[Claim]:
        """Those that are not known to be lost; we are one of them."""
        return [claim for claim in candidates if claim.identity not in self._gone]

    def lost(self, claim: Claim, *, ask: bool = False) -> bool:
        """Look at a member: whether it is gone, or has been still for too long."""
        seen, now = self._presence(claim, ask), time.monotonic()
        if seen is Presence.STILL:
            return now - self._still.setdefault(claim.identity, now) >= self._patience
        self._still.pop(claim.identity, None)
        return seen is Presence.GONE

    def _probe(self, candidates: Sequence[Claim], *, now: bool = False) -> None:
        """See now and then which of ``candidates`` are lost; they are out even if they wake up. From the second time on
        one is asked, too: most come before that."""
        if not now and time.monotonic() < self._next_probe:
            return
        others = [claim for claim in candidates if claim.identity != self._identity]
        asked = others[self._probes % len(others)] if others and self._probes and not now else None
        self._gone.update(claim.identity for claim in others if self.lost(claim, ask=claim is asked))
        self._probes += 1
        self._next_probe = time.monotonic() + PROBE_SECONDS
