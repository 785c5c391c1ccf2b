"""Joining: claim a rank, wait for the others, connect, and be in, all under one generation or not at all.

A generation is claimed rank by rank and complete when all have met; it never gets another member after that. Where a
claimant is dead, or the world has to come back, a member opens the next generation with a compare-and-set. All members
that still wait move there. Two halves of a split world cannot both complete one.
"""

from __future__ import annotations

import contextlib
import random
import secrets
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from multiworld.config import NetworkSettings, WorldConfig, printed
from multiworld.errors import InvalidArgument, MultiWorldError, RendezvousError, StaleGeneration
from multiworld.liveness.neighbour import Presence, this_process
from multiworld.process.join_threads import CROWD_SECONDS, JoinJob, Pause, Steps
from multiworld.rendezvous.ledger import BY_ROSTER, Claim, Ledger
from multiworld.rendezvous.renewal import Kept
from multiworld.rendezvous.wiring import (
    ALIVE_SECONDS,
    HandshakeAcceptor,
    Incompatible,
    PeerDialler,
    Wires,
    Wiring,
    WiringFailed,
    alive,
    answer_presence,
    dial,
    presence,
)
from multiworld.store.client import SILENT, Cancelled, Deadline, StoreClient, StoreFailed
from multiworld.store.sources import StoreSource
from multiworld.transport.descriptors import cause_of, descriptor_shortage, system_message
from multiworld.transport.endpoint import Endpoint
from multiworld.transport.greeting import PROTOCOL, GreetingError, Hello, Reason, Role, versions

FIRST_PAUSE, LONGEST_PAUSE = 0.001, 0.05
ALIVE_CHECK_SECONDS = 1.0
#: how long a peer may take to connect, or to say that it is ready; and so much longer for each join under way here
STEP_SECONDS, CROWDED_STEP_SECONDS = 5.0, 0.01
#: how much longer than ``join_timeout`` a call of torch's store is waited for
STORE_GRACE_SECONDS = 1.0
#: the same for an answer to our own client: a store that answers is not blamed for members that do not join
ANSWER_GRACE_SECONDS = 0.3
#: how long a newcomer with a rank waits for members that shrink or grow the world; they may all be dead
ROSTER_SECONDS = 5.0
#: how many members are looked at: each may take a second, and those that are lost for good have left the generation
MOST_LOOKS = 8
_OTHER_FILE = "pass the path of a file that every member can write, in a folder that exists"


def store_silent(where: object, complaint: GreetingError | None) -> RendezvousError:
    """The error for a store that does not answer. If this process hosts it, it may be busy with peers it refuses."""
    return _store_failed(where, StoreFailed("does not answer", SILENT), complaint)


def _store_failed(where: object, failed: StoreFailed, complaint: GreetingError | None = None) -> RendezvousError:
    why, what = complaint or failed, f"the store {where} {failed.what}"
    what += f"; this process refused a peer that {complaint.what}" if complaint else ""
    return RendezvousError(what=what, cause=why.cause, remedy=why.remedy)


def _waker(job: JoinJob[Any]) -> Callable[[], None]:
    """Wakes ``job`` as long as it is under way. A membership keeps it for good, and must not keep the world alive."""
    reference = weakref.ref(job)

    def wake() -> None:
        found = reference()
        if found is not None:
            found.wake()

    return wake


class Moved(Exception):
    """This generation cannot be completed; look at the newest one."""


class Elsewhere(Exception):
    """The world is not come into in this way now: see ``reassembly.Replacement``."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """A generation whose members have all met, after ``seconds``. ``config`` has our rank and the size; ``claims`` are
    by rank; ``acceptor`` answers for our membership from now on."""

    config: WorldConfig
    generation: int
    wires: Wires
    acceptor: HandshakeAcceptor
    claims: tuple[Claim, ...]
    seconds: float


class Rendezvous:
    """One call of ``join`` or ``rejoin``, over as many generations as it takes.

    Args:
        unconnected: picks those claims whose process no heartbeat connection leads to yet.
        since: monotonic time from which ``join_timeout`` counts.
        resize: whether to wait when the world exists with another size.
        after: our last generation; the new one is higher.
        cancelled: asked now and then; True gives up.
        kept: connections of the last generation.
    """

    def __init__(
        self,
        job: JoinJob[Any],
        listener: Callable[[str, NetworkSettings], Endpoint],
        unconnected: Callable[[Iterable[Claim]], list[Claim]],
        config: WorldConfig,
        source: StoreSource,
        *,
        since: float,
        resize: bool = False,
        after: int = 0,
        cancelled: Callable[[], bool] = lambda: False,
        kept: Kept | None = None,
    ) -> None:
        self._job, self._kept = job, kept or Kept()
        self._listener = listener
        self._unconnected = unconnected
        self._config = config
        self._after, self._rejoins = after, after > 0
        self._resize = resize
        self._cancelled = cancelled
        self._near = config.network.same_host
        self._started = since
        self._deadline = since + config.join_timeout
        self._source = source
        #: the store, where it has no clients of ours
        self._opened: Any = None
        #: whether the store has ever answered
        self._reached = False
        self._why = "the other members have not joined"
        #: why we refused a peer that may be a member; part of the message when the others do not join in time
        self._complaint: GreetingError | None = None
        self._acceptor: HandshakeAcceptor | None = None
        #: generations that we ended for all; others may still read them until the next one is complete
        self._abandoned: list[int] = []
        #: when we first met a generation that goes by a roster; 0 before
        self._by_roster_since = 0.0

    def run(self) -> Steps[Meeting]:
        """Meet the other members. Errors do not say which world they are about: see ``told_of``.

        Raises:
            RendezvousError: see ``MultiWorld.join``.
            StaleGeneration: the world has gone on without us after ``after``.
        """
        with self._failures_of_the_store():
            self._endpoint = self._open_endpoint(self._source.address)
            with self._shown():
                return (yield from self._meet())

    @contextlib.contextmanager
    def _shown(self) -> Iterator[None]:
        """Tell who asks that we are there; not after a join that failed."""
        member = self._config.name, 0, self._config.identity
        self._endpoint.expect(*member, answer_presence)
        try:
            yield
        except BaseException:
            if not self._rejoins:
                self._endpoint.forget(*member)
            raise

    @property
    def _ledger(self) -> Ledger:
        return self._ledger_with(Deadline(self._deadline + ANSWER_GRACE_SECONDS, self._cancelled))

    def _ledger_with(self, deadline: Deadline) -> Ledger:
        """The ledger, for this thread until the next pause."""
        store = self._opened or self._open_store(deadline)
        self._reached = True
        if not isinstance(store, StoreClient):
            self._opened = store
        return Ledger(store, self._config.name)

    def _meet(self) -> Steps[Meeting]:
        while True:
            self._check_time()
            try:
                generation = self._newest()
                if generation is not None:
                    return (yield from self._enter(generation))
                yield Pause(LONGEST_PAUSE)
            except Moved:
                continue
            except Incompatible as other:
                self._fail(str(other), other.error.cause, remedy=other.error.remedy)

    @contextlib.contextmanager
    def _failures_of_the_store(self) -> Iterator[None]:
        try:
            yield
        except MultiWorldError:
            raise
        except StoreFailed as failed:
            raise _store_failed(self._source.where, failed, self._found_complaint()) from None
        except Cancelled:
            self._fail_cancelled()
        except ValueError as error:
            self._fail(
                f"the store {self._source.where} holds data that multiworld did not write: {error}",
                "another program writes to this store under the same keys",
                remedy="use a store, or a name for the world, that no other program uses",
            )
        except RuntimeError as error:  # torch's own are all of this kind
            self._fail(f"the store {self._source.where} failed: {error}", "its host ended, or is cut off", error)

    def _found_complaint(self) -> GreetingError | None:
        ours = None if self._acceptor is None else self._acceptor.complaint()
        return ours or self._complaint or self._source.complaint(self._started)

    def _open_endpoint(self, address: str) -> Endpoint:
        try:
            return self._listener(address, self._config.network)
        except OSError as error:
            cause, remedy = cause_of(error, "it is not an address of this machine")
            kind = InvalidArgument if descriptor_shortage(error) is None else RendezvousError
            what = f"peers cannot reach this process at {address!r}: {system_message(error)}"
            raise kind(
                what=what, cause=cause, remedy=remedy or "pass address= with an address of this machine"
            ) from None

    def _open_store(self, deadline: Deadline) -> Any:
        source = self._source
        try:
            return source.open(deadline)
        except (StoreFailed, Cancelled):
            raise
        except OSError as error:
            cause, remedy = cause_of(error, "its folder is not there, or its file cannot be written")
            failed = StoreFailed(f"cannot be reached: {system_message(error)}", cause, remedy or _OTHER_FILE)
            raise _store_failed(source.where, failed) from None
        except Exception as error:  # noqa: BLE001 - torch raises other types on every release
            what = f"the store {source.where} cannot be reached: {error}"
            self._fail(what, "its file cannot be written", error, remedy=_OTHER_FILE)

    def _newest(self) -> int | None:
        """The generation to enter, opened if that is for us to do; None to wait."""
        newest = self._ledger.generation()
        if self._resize and not self._after:
            return self._resized(newest)
        if newest <= self._after:
            return self._ledger.advance(newest, self._after + 1)
        if not self._ledger.sealed(newest):
            return newest
        return self._after_sealed(newest)

    def _resized(self, newest: int) -> int | None:
        """The generation that the members have opened with our size; a newcomer opens none itself."""
        size = self._ledger.size(newest) if newest else None
        if size == self._config.size and not self._ledger.sealed(newest):
            return newest
        self._why = f"the members have not rejoined with size {self._config.size}"
        return None

    def _after_sealed(self, sealed: int) -> int:
        """Return the generation after a complete one that we are not in, if our place is free."""
        config = self._config
        size = self._ledger.size(sealed)
        other_size = size is not None and size != config.size
        if other_size and not self._after:
            self._refuse_size(sealed, size or 0)
        holder = self._ledger.holder(sealed, config.rank)
        taken = holder is not None and self._alive(sealed, config.rank, holder)
        if self._after and (taken or other_size):
            raise self._stale(sealed, holder if taken else None)
        if taken and holder is not None:
            self._refuse_duplicate(sealed, holder)
        return self._ledger.advance(sealed)

    def _stale(self, sealed: int, holder: Claim | None) -> StaleGeneration:
        """The error for a world that has gone on; ``holder`` has our rank now."""
        what, cause, remedy = f"the world is in generation {sealed} without this process", None, None
        if holder is not None and holder.process == this_process():
            what = f"another join of this very process has rank {self._config.rank} in generation {sealed}"
            cause, remedy = "two MultiWorld objects of this process use one rank", "use the World that has the rank"
        return StaleGeneration(what=what, cause=cause, remedy=remedy, current=sealed)

    def _enter(self, generation: int) -> Steps[Meeting]:
        config = self._config
        place, places = yield from self._place(generation)
        incarnation = secrets.token_hex(8)
        where = config.name, generation, place, places, incarnation
        self._acceptor = acceptor = HandshakeAcceptor(self._endpoint, *where, self._cancelled, _waker(self._job))
        try:
            claims = yield from self._gather(generation, incarnation)
            order = sorted(claims)
            rank, members = order.index(place), tuple(map(claims.__getitem__, order))
            wires = yield from self._wire(generation, rank, members, order, acceptor)
        except BaseException:
            self._complaint = self._found_complaint()
            acceptor.close()
            raise
        self._clean_up(generation, rank)
        config = replace(config, rank=rank, size=len(order))
        return Meeting(config, generation, wires, acceptor, members, time.monotonic() - self._started)

    def _place(self, generation: int) -> Steps[tuple[int, int]]:
        """Our place among those that may be members, and their number."""
        config = self._config
        size = self._ledger.agree_size(generation, config.size)
        if size == BY_ROSTER:  # the members shrink or grow the world, and a newcomer waits for them
            self._why = "the members go on with others"
            yield Pause(LONGEST_PAUSE)
            self._by_roster_since = self._by_roster_since or time.monotonic()
            if self._after or time.monotonic() - self._by_roster_since > ROSTER_SECONDS:
                self._by_roster_since = 0.0
                self._move_on(generation)
            raise Moved
        if size != config.size:
            self._tell_size(generation, size)
            self._refuse_size(generation, size)
        return config.rank, size

    def _tell_size(self, generation: int, size: int) -> None:
        """Tell those who wait which size we have: the store, where they could be told, may end with this process."""
        config = self._config
        for claim in self._ledger.claims(generation, range(size)).values():
            hello = Hello(Role.SIZE, config.name, generation, config.rank, config.size, claim.incarnation)
            with contextlib.suppress(OSError):
                dial(claim, hello, config.network, min(ALIVE_SECONDS, self._deadline - time.monotonic())).close()

    def _gather(self, generation: int, incarnation: str) -> Steps[dict[int, Claim]]:
        """Claim our place, and wait for the claims of the others; those of all members, by place."""
        ours = self._claim(generation, self._config.rank, incarnation)
        return (yield from self._await_claims(generation, ours))

    def _our_claim(self, incarnation: str) -> Claim:
        config, endpoint, us = self._config, self._endpoint, this_process()
        local = endpoint.local if self._near else ""
        where = endpoint.address, endpoint.port, us.machine, us.pid, us.started
        told: dict[str, Any] = {"local": local, "identity": config.identity, "kept": self._kept.told()}
        return Claim(incarnation, *where, config.backend, **told, since=time.time())

    def _claim(self, generation: int, place: int | str, incarnation: str) -> Claim:
        holder = self._ledger.claim(generation, place, self._our_claim(incarnation))
        if holder.incarnation != incarnation:
            if self._alive(generation, self._config.rank, holder):
                self._refuse_duplicate(generation, holder)
            self._move_on(generation)
        return holder

    def _await_claims(self, generation: int, ours: Claim) -> Steps[dict[int, Claim]]:
        config = self._config
        claims = {config.rank: ours}
        pause, next_check = FIRST_PAUSE, time.monotonic() + ALIVE_CHECK_SECONDS
        while True:
            missing = [rank for rank in range(config.size) if rank not in claims]
            came = self._ledger.claims(generation, missing)
            self._check_protocols(generation, came)
            claims |= came
            if self._ledger.generation() != generation:
                raise Moved
            if len(claims) == config.size:
                self._check_backends(claims)
                return claims
            self._why = f"rank {', '.join(str(r) for r in range(config.size) if r not in claims)} has not joined"
            self._check_time()
            if time.monotonic() > next_check:
                self._check_alive(generation, claims)
                next_check = time.monotonic() + ALIVE_CHECK_SECONDS
            yield Pause(pause)
            pause = min(pause * 1.5, LONGEST_PAUSE)

    def _check_alive(self, generation: int, claims: dict[int, Claim]) -> None:
        for rank, claim in claims.items():
            if rank != self._config.rank and not self._alive(generation, rank, claim):
                self._move_on(generation)

    def _alive(self, generation: int, rank: int, claim: Claim) -> bool:
        return alive(self._config.name, generation, rank, claim, self._config.network)

    def _some_run(self, members: Sequence[Claim]) -> bool:
        """Tell whether members are there, in whatever generation: some of them are looked at. One that is still counts
        as there at first: it may only be slow to answer."""
        patient = time.monotonic() - self._started < max(ROSTER_SECONDS, self._config.heartbeat.lost_after)
        for claim in random.sample(members, min(len(members), MOST_LOOKS)):
            self._check_time()
            seen = presence(claim, ask=True, world=self._config.name, network=self._config.network)
            if seen is Presence.HERE or (seen is Presence.STILL and patient):
                return True
        return False

    def _check_protocols(self, generation: int, claims: dict[int, Claim]) -> None:
        """See that claimants speak our protocol; one that does not may be dead, and its claim from before an
        upgrade."""
        for rank, claim in claims.items():
            if claim.protocol != PROTOCOL:
                if not self._alive(generation, rank, claim):
                    self._move_on(generation)
                raise Incompatible(rank, claim, GreetingError(Reason.VERSION, versions(claim.protocol, PROTOCOL)))

    def _is_over(self, generation: int, claims: Sequence[Claim]) -> bool:  # noqa: ARG002
        """Tell whether ``generation`` cannot be completed with all of ``claims``."""
        return self._ledger.generation() != generation

    def _wire(
        self, generation: int, rank: int, claims: tuple[Claim, ...], places: list[int], acceptor: HandshakeAcceptor
    ) -> Steps[Wires]:
        config = self._config

        last_look = time.monotonic()

        def given_up() -> bool:
            nonlocal last_look
            due = time.monotonic() - last_look > LONGEST_PAUSE + CROWD_SECONDS * self._job.crowd
            last_look = time.monotonic() if due else last_look
            return self._cancelled() or (due and self._is_over(generation, claims))

        try:
            dialler = PeerDialler(config.name, generation, rank, claims, places, config.network, self._near)
            # A peer most likely has as many joins under way as this process.
            patience = lambda: STEP_SECONDS + CROWDED_STEP_SECONDS * self._job.crowd  # noqa: E731
            over = lambda: self._cancelled() or self._ledger.generation() != generation  # noqa: E731
            wiring = Wiring(dialler, acceptor, self._deadline, patience, given_up, over, self._unconnected)
            return (yield from wiring.connect(self._kept.among(claims)))
        except WiringFailed as failed:
            self._why = f"rank {failed.peer} joined but could not be connected to: {failed.why}"
            self._check_time()
            self._move_on(generation)

    def _clean_up(self, generation: int, rank: int) -> None:
        """Seal it, and delete what is left of the one before. A store that fails now does no harm."""
        try:
            ledger = self._ledger_with(Deadline(time.monotonic() + STORE_GRACE_SECONDS))
            if rank == 0:
                ledger.seal(generation)
                ledger.enroll()
            self._forget(ledger, generation, rank)
        except Exception as error:  # noqa: BLE001 - of the store's many types
            self._why = str(error)

    def _forget(self, ledger: Ledger, generation: int, rank: int) -> None:
        """Delete what is left of generations before ``generation``."""
        for given_up in self._abandoned:
            ledger.forget(given_up, range(self._config.size), whole=True)
        if generation > 1:
            ledger.forget(generation - 1, (rank,), whole=rank == 0)

    def _move_on(self, generation: int) -> NoReturn:
        if self._ledger.advance(generation) == generation + 1:
            self._abandoned.append(generation)
        raise Moved

    def _check_backends(self, claims: dict[int, Claim]) -> None:
        others = {claim.backend for claim in claims.values()} - {self._config.backend}
        if others:
            self._fail(
                f"other members joined with backend {', '.join(sorted(others))}, this one with {self._config.backend}",
                "backend= differs between the members",
            )

    def _check_time(self) -> None:
        if self._cancelled():
            self._fail_cancelled()
        if time.monotonic() > self._deadline and not self._reached:  # other joins wait for it, too
            raise store_silent(self._source.where, self._found_complaint())
        if time.monotonic() > self._deadline:
            late = f"not assembled within {self._config.join_timeout} s"
            complaint = self._found_complaint()
            if complaint is not None:
                what = f"{late}: {self._why}; this process refused a peer that {complaint.what}"
                self._fail(what, complaint.cause, remedy=complaint.remedy)
            self._fail(f"{late}: {self._why}", "a member did not start, or joined under another name, size or store")

    def _fail_cancelled(self) -> NoReturn:
        self._fail(
            "joining was cancelled",
            "the await was cancelled, the MultiWorld was closed, or the program ends",
            remedy="nothing if that was intended; otherwise join again",
        )

    def _refuse_size(self, generation: int, size: int) -> NoReturn:
        self._fail(
            f"the world has size {size} in generation {generation}, not {self._config.size}",
            "size= differs between the members; with resize=True join waits until the members rejoin with the new size",
        )

    def _refuse_duplicate(self, generation: int, holder: Claim) -> NoReturn:
        if holder.process == this_process():
            self._fail(
                f"rank {self._config.rank} is taken in generation {generation} by another join of this very process",
                "two MultiWorld objects of this process use one rank, or a leave() or a cancelled join has not ended",
                remedy="use the World that has the rank, join with a free rank, or leave it first and await that",
            )
        self._fail(
            f"rank {self._config.rank} is taken in generation {generation} by process {holder.pid} "
            f"at {printed(holder.address, holder.port)}, which is alive",
            "two processes were started with one rank, or the world is complete already",
        )

    def _fail(self, what: str, cause: str, error: BaseException | None = None, remedy: str | None = None) -> NoReturn:
        raise RendezvousError(what=what, cause=cause, remedy=remedy) from error
