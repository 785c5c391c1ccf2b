"""Reassembly: a world goes on with those members that are left, and newcomers come in."""

from __future__ import annotations

import contextlib
import functools
import json
import random
import socket
import time
from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from multiworld.errors import RendezvousError
from multiworld.process.join_threads import Pause, Steps
from multiworld.rendezvous.agreement import PROBE_SECONDS, Agreement, Roll
from multiworld.rendezvous.joining import (
    ALIVE_CHECK_SECONDS,
    FIRST_PAUSE,
    LONGEST_PAUSE,
    ROSTER_SECONDS,
    STEP_SECONDS,
    Elsewhere,
    Meeting,
    Moved,
    Rendezvous,
)
from multiworld.rendezvous.ledger import Claim, Ledger, Opened
from multiworld.rendezvous.wiring import Incompatible, dial, presence
from multiworld.transport.greeting import GreetingError, Hello, Role

#: of what is said at the door
MAX_LINE = 1 << 16
#: how many members are looked at together, while all connect
AT_ONCE = 2
#: between two looks of the member that all wait for
LEADER_PAUSE = 0.02
_TORCH = torch.__version__


class Reassembly(Rendezvous):
    """One call of ``shrink`` or ``grow``; arguments as of ``Rendezvous``."""

    def __init__(self, roll: Roll, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs, after=roll.after)
        self._candidates: list[Claim] = []
        self._next_look, self._looks = 0.0, 0
        #: what was there of the next generation, when it was looked for last
        self._opened_next: Opened
        self._go_by(roll)

    def _go_by(self, roll: Roll) -> None:
        self._roll, self._after = roll, roll.after
        config = self._config
        seen = functools.partial(presence, world=config.name, network=config.network)
        self._agreement = Agreement(roll, config.identity, seen, config.heartbeat.lost_after)

    def _newest(self) -> int | None:
        newest, self._opened_next = self._ledger.open(self._after)  # most likely that is the last one
        return newest if newest > self._after else self._ledger.advance(self._ledger.generation(), self._after + 1)

    def _place(self, generation: int) -> Steps[tuple[int, int]]:
        seen = self._opened_next if generation == self._after + 1 else None
        self._candidates = self._agreement.candidates(self._ledger, generation, seen)
        if not self._candidates:  # the rejoin may have ended
            self._why = "others rejoin the world as it was, or with another size"
            yield Pause(LONGEST_PAUSE)
            super()._move_on(generation)
        identities = [claim.identity for claim in self._candidates]
        return identities.index(self._config.identity), len(identities)

    def _gather(self, generation: int, incarnation: str) -> Steps[dict[int, Claim]]:
        ours = self._claim(generation, self._config.identity, incarnation)
        roster = yield from self._await_roster(generation)
        self._agreement.check(roster, generation)
        self._next_look = time.monotonic() + PROBE_SECONDS
        if ours not in roster:  # given up, or with a claim of ours that is not valid any more
            self._move_on(generation)
        places = {claim.identity: place for place, claim in enumerate(self._candidates)}
        claims = {places[claim.identity]: claim for claim in roster}
        self._check_protocols(generation, claims)
        self._check_backends(claims)
        return claims

    def _await_roster(self, generation: int) -> Steps[Sequence[Claim]]:
        """Wait until it is closed. The store tells, unless this thread is for other joins as well, or cannot be told:
        then we look again and again, later with more candidates, since each look costs the store."""
        pause = min(LONGEST_PAUSE, FIRST_PAUSE * (1 + len(self._candidates) / 8))
        while True:
            leads = self._agreement.leads(self._candidates)
            if self._job.crowd or not self._agreement.wait(self._ledger, generation, self._candidates, LONGEST_PAUSE):
                yield Pause(pause, urgent=leads)
                pause = min(pause * 1.5, LEADER_PAUSE if leads else LONGEST_PAUSE)
            if (roster := self._look(generation)) is not None:
                return roster
            self._say_who_is_missing(generation)

    def _our_claim(self, incarnation: str) -> Claim:
        for claim in self._roll.members:
            if claim.identity == self._config.identity:  # where we are reached stays the same
                return claim._replace(incarnation=incarnation, since=time.time(), kept=self._kept.told())
        return super()._our_claim(incarnation)

    def _look(self, generation: int) -> Sequence[Claim] | None:
        roster, newest = self._agreement.look(self._ledger, generation, self._candidates)
        if newest != generation:
            raise Moved
        return roster

    def _say_who_is_missing(self, generation: int) -> None:
        """Fail once it takes too long."""
        if time.monotonic() > self._deadline:
            missing = self._agreement.missing(self._ledger, generation, self._candidates)
            old = ", ".join(str(self._candidates.index(claim)) for claim in missing)
            self._why = f"rank {old} of generation {self._after} runs, and did not call it"
        self._check_time()

    def _is_over(self, generation: int, claims: Sequence[Claim]) -> bool:
        now = time.monotonic()
        if now > self._next_look:  # a few at a time: a look costs a third of a millisecond
            self._next_look = now + PROBE_SECONDS
            self._looks += AT_ONCE
            if any(self._agreement.lost(claims[(self._looks + one) % len(claims)]) for one in range(AT_ONCE)):
                return True
        return super()._is_over(generation, claims)

    def _forget(self, ledger: Ledger, generation: int, rank: int) -> None:
        if rank:
            return
        identities = [claim.identity for claim in (*self._roll.members, *ledger.guests(self._after))]
        for round_ in range(self._after + 1, generation + 1):
            ledger.forget(round_, identities, whole=round_ < generation)
        ledger.forget(self._after, range(len(self._roll.members)), whole=True)

    def _move_on(self, generation: int) -> NoReturn:
        self._ledger.close_roster(generation, ())  # before the next one is opened: see ``agreement``
        super()._move_on(generation)


class Newcomer(Reassembly):
    """One call of ``join`` with ``grow=True``: it waits at the door, with a connection to rank 0, until it is invited.

    The members see the connection, and that it ends if we do. An invitation is in the store; see ``Ledger.invite``.

    Args:
        by_rank: the size of a world into which ``Replacement`` may lead as well; None: only the members do.
    """

    def __init__(self, *args: Any, by_rank: int | None = None, **kwargs: Any) -> None:
        super().__init__(Roll(0, ()), *args, **kwargs)
        self._by_rank = by_rank
        self._why = "no members of the world take newcomers in"

    def _meet(self) -> Steps[Meeting]:
        try:
            self._go_by((yield from self._wait_at_the_door()))
        except Incompatible as other:
            self._fail(str(other), other.error.cause, remedy=other.error.remedy)
        return (yield from super()._meet())

    def _wait_at_the_door(self) -> Steps[Roll]:
        knocked = 0
        while True:
            self._check_time()
            invited = self._ledger.guests(knocked) if knocked else ()
            if any(claim.identity == self._config.identity for claim in invited):
                return Roll(knocked, tuple(self._ledger.members(knocked)))
            complete = newest = self._ledger.generation()
            members = self._ledger.members(newest) if newest and self._ledger.sealed(newest) else ()
            if not members and self._by_rank is not None and self._by_rank == self._ledger.size(newest):
                complete, members = _passed_over(self._ledger, newest, self._by_rank)
                if not members:
                    raise Elsewhere
            if members:
                knocked = complete
                yield from self._wait_for_rank_0(complete, members[0], newest)
                if self._by_rank is not None and not self._some_run(members):
                    raise Elsewhere
            yield Pause(LONGEST_PAUSE)

    def _wait_for_rank_0(self, generation: int, host: Claim, newest: int) -> Steps[None]:
        """Knock, and return when the connection ends: we were invited, or that generation is over; or when another one
        than ``newest`` is the newest."""
        try:
            hello = Hello(Role.DOOR, self._config.name, generation, incarnation=host.incarnation)
            sock = dial(host, hello, self._config.network, STEP_SECONDS)
        except OSError as error:
            if isinstance(error, GreetingError) and error.lasting:
                raise Incompatible(0, host, error) from None
            return
        with sock:
            self._why = "the members have not called grow()"
            introduction = {"claim": self._our_claim("").packed(), "torch": _TORCH}
            sock.sendall(json.dumps(introduction).encode() + b"\n")
            sock.setblocking(False)
            said = b""
            with contextlib.suppress(ConnectionError):
                while data := (yield from self._more(sock, newest)):
                    said = (said + data)[:MAX_LINE]
            if said:
                raise _refused(said)

    def _more(self, sock: socket.socket, newest: int) -> Steps[bytes]:
        """Wait for what rank 0 says; nothing once others have gone on, of which a frozen rank 0 tells nothing."""
        next_look = time.monotonic() + ALIVE_CHECK_SECONDS
        while True:
            self._check_time()
            with contextlib.suppress(BlockingIOError):
                return sock.recv(MAX_LINE)
            if time.monotonic() > next_look:
                next_look += ALIVE_CHECK_SECONDS
                if self._ledger.generation() != newest:
                    return b""
            yield Pause(LONGEST_PAUSE, urgent=True)


class Replacement(Rendezvous):
    """One call of ``join`` by rank, into a world that may have gone on without that rank.

    It raises ``Elsewhere`` while members of a complete generation run: they go on without us, and take us in as a
    ``Newcomer``, or open a generation that has a place for each rank.
    """

    _next_look = 0.0

    def _after_sealed(self, sealed: int) -> int:
        members, rank = self._ledger.members(sealed), self._config.rank
        ours = self._ledger.roster(sealed) is None and (
            len(members) != self._config.size or self._alive(sealed, rank, members[rank])
        )
        if ours:
            return super()._after_sealed(sealed)  # which refuses us
        if self._some_run(members):
            raise Elsewhere
        return self._ledger.advance(sealed)

    def _check_alive(self, generation: int, claims: dict[int, Claim]) -> None:
        """See as well whether members can be reached by now that could not, and have not come to this generation."""
        super()._check_alive(generation, claims)
        if time.monotonic() > self._next_look:
            self._next_look = time.monotonic() + ROSTER_SECONDS
            _, members = _passed_over(self._ledger, generation, self._config.size)
            if self._some_run(random.sample(members, min(1, len(members)))):  # it may take a second each
                raise Elsewhere


#: generations that are looked through for a complete one; attempts that came to nothing use up some
_FAR = 64


def _passed_over(ledger: Ledger, newest: int, size: int) -> tuple[int, Sequence[Claim]]:
    """The last complete generation before one that was opened by rank, and its members, if none has come to that."""
    complete = next((one for one in range(newest - 1, max(0, newest - _FAR), -1) if ledger.sealed(one)), 0)
    members = ledger.members(complete)
    if not members:
        return complete, ()
    came = {claim.identity for claim in ledger.claims(newest, range(size)).values()}
    return complete, () if any(claim.identity in came for claim in members) else members


def _refused(said: bytes) -> RendezvousError:
    """The error that the members told us."""
    try:
        told = json.loads(said)
        return RendezvousError(what=str(told["what"]), cause=str(told["cause"]), remedy=str(told["remedy"]))
    except (ValueError, TypeError, KeyError, RecursionError):
        return RendezvousError(what="rank 0 says to a newcomer what cannot be right", cause="it has another version")
