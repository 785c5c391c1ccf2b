"""This process as a member of one world, over all the generations of that world."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from multiworld.errors import WrongContext
from multiworld.process.event_loop import no_loop
from multiworld.rendezvous.ledger import Claim
from multiworld.session.counters import Counters
from multiworld.session.session import LINGER_SECONDS, Session
from multiworld.store.sources import StoreSource


@dataclass(frozen=True, slots=True)
class WorldMember:
    """A member of a world.

    Attributes:
        id: its identity, the same in all generations.
        rank: in the present generation.
        old_rank: in the last generation of this process; None for who was not in it.
    """

    id: str
    rank: int
    old_rank: int | None


class Member:
    """Our place in one world: its present generation, and the way into it for operations.

    Args:
        owner: the ``MultiWorld``; it lives as long as a world or a group of it is held.

    Attributes:
        departures: number of times that the world was left.
        loop: event loop that operations are awaited in, once there is one.
        forget: called when the world was left.
    """

    def __init__(
        self, owner: object, session: Session, source: StoreSource, loop: asyncio.AbstractEventLoop | None
    ) -> None:
        self.owner, self.source = owner, source
        self.name = session.name
        self.torch_device = torch.device(session.config.device)
        self.forget: Callable[[], None] = lambda: None
        self._lock = threading.Lock()
        self.departures = 0
        self._pid = os.getpid()
        self._earlier = Counters()
        #: of the last generation, by rank
        self._old_claims: Sequence[Claim] = ()
        self._take_up(session, loop)

    def _take_up(self, session: Session, loop: asyncio.AbstractEventLoop | None) -> None:
        self.loop, self.world_rank, self.config = loop, session.config.rank, session.config
        self.session = session  # last: a thread that finds it, without the lock, finds the rest, too

    def leave(self, seconds: float = LINGER_SECONDS) -> None:
        """Leave the world in good order; blocks for at most ``seconds``, so that what was sent can arrive."""
        with self._lock:
            self.departures += 1
            session = self.session
        session.leave(seconds)
        self.forget()

    def renew(
        self, session: Session, loop: asyncio.AbstractEventLoop | None, departures: int, wanted: Callable[[], bool]
    ) -> bool:
        """Take up the next generation, unless the world was left since ``departures``, or it is not wanted by now."""
        with self._lock:
            if self.departures != departures or not wanted():
                return False
            self._earlier.add(self.session.counters())
            self._old_claims = self.session.claims
            self._take_up(session, loop)
            return True

    @property
    def members(self) -> tuple[WorldMember, ...]:
        """The members, by rank."""
        old = {claim.identity: rank for rank, claim in enumerate(self._old_claims)}
        ids = (claim.identity for claim in self.session.claims)
        return tuple(WorldMember(one, rank, old.get(one)) for rank, one in enumerate(ids))

    def gone(self) -> frozenset[str]:
        """Identities of the members that are lost for all we know, or have left for good."""
        session = self.session
        return frozenset(session.claims[rank].identity for rank in tuple(session.gone))  # the hub may add one meanwhile

    @property
    def generation(self) -> int:
        """Number of the present generation, from 1."""
        return self.session.membership.generation

    @property
    def on_device(self) -> bool:
        """True if CUDA tensors travel from device to device."""
        return self.session.membership.on_device

    def counters(self) -> Counters:
        """Count what this membership did, over all generations."""
        total = Counters()
        total.add(self._earlier)
        total.add(self.session.counters())
        return total

    def enter(self, operation: str) -> Session:
        """Find the live session for an operation of the calling thread; raises a typed error if there is none."""
        if os.getpid() != self._pid:  # in line, as below: this is the hot path
            raise self._forked()
        session = self.session
        failure = session.engine.failure
        if failure is not None:
            raise failure.with_context(operation=operation)
        return session

    def enter_loop(self, operation: str) -> Session:
        """Find the live session for an operation of the running loop; raises a typed error if there is none."""
        session = self.enter(operation)
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise no_loop(operation, self.name, self.world_rank) from None
        if loop is not self.loop:
            self._bind(loop, session, operation)
        return session

    def check_process(self) -> None:
        """Raise ``WrongContext`` in a forked child of the process that joined."""
        if os.getpid() != self._pid:
            raise self._forked()

    def is_whole(self) -> bool:
        """Tell whether the world is active with all its members: none was lost, has left, or has said that it will."""
        session = self.session
        if session.failure is None:
            session.hub.call_and_wait(session.control.look)
        return session.failure is None and not session.leaving and not session.departed

    def _forked(self) -> WrongContext:
        return WrongContext(self.name, "used in a forked child of the process that joined", rank=self.world_rank)

    def _bind(self, loop: asyncio.AbstractEventLoop, session: Session, operation: str) -> None:
        """Serve ``loop`` from now on: the first one, or the next after the last one was closed."""
        if self.loop is not None and not self.loop.is_closed():
            what = "used in another event loop than the one that joined"
            cause = "the loop that it was joined or first awaited in still exists"
            remedy = "await it there, close that loop first, or use the synchronous twins in a thread"
            raise WrongContext(self.name, what, cause=cause, remedy=remedy, rank=self.world_rank, operation=operation)
        self.loop = loop
        session.bridge.attach(loop)
