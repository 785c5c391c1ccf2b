"""A world: one fault domain, its life from join to leave, and back by rejoin."""

from __future__ import annotations

import asyncio
import os
import threading
import zlib
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from multiworld.config import WorldConfig, WorldState
from multiworld.errors import BrokenWorldException, InvalidArgument, MultiWorldError, WorldClosed, WrongContext
from multiworld.group import Group, SyncGroup
from multiworld.loops import no_loop, running_loop
from multiworld.ops.checks import check_list, check_number, invalid
from multiworld.rendezvous.settings import checked_config
from multiworld.session import LINGER_SECONDS
from multiworld.tally import Tally
from multiworld.threads import run_in_thread

if TYPE_CHECKING:
    from multiworld.multi import MultiWorld
    from multiworld.rendezvous.stores import StoreSource
    from multiworld.session import Session


class SyncWorld(SyncGroup):
    """Synchronous twins of a world's operations and of its life cycle."""

    _group: World

    def leave(self) -> None:
        """``leave`` of the world, waiting in this thread."""
        self._group._leave()

    def rejoin(self, *, rank: int | None = None, size: int | None = None, timeout: float | None = None) -> World:
        """``rejoin`` of the world, waiting in this thread."""
        self._group._rejoin(rank, size, timeout, None, threading.Event())
        return self._group


class World(Group):
    """One fault domain: members, a generation, a state. Made by ``MultiWorld.join``.

    When a member is lost, every waiting operation here raises the same first cause and other worlds go on. The object
    survives its generations: after ``rejoin()`` it is the same world under a higher generation.
    """

    def __init__(
        self,
        owner: MultiWorld,
        config: WorldConfig,
        session: Session,
        source: StoreSource,
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        self._owner = owner
        self._config = config
        self._live = session
        self._loop = loop
        self.source = source
        self._pid = os.getpid()
        self.torch_device = torch.device(config.device)
        super().__init__(self, tuple(range(config.size)), 0)
        self._sync_world = SyncWorld(self)
        #: how often it was left; who rejoins meanwhile is not taken back in
        self._departures = 0
        self._earlier = Tally()

    @property
    def sync(self) -> SyncWorld:
        """The synchronous twins of all operations, ``leave`` and ``rejoin``."""
        return self._sync_world

    @property
    def name(self) -> str:
        """The world's name."""
        return self._config.name

    @property
    def world_rank(self) -> int:
        """Our rank in the world."""
        return self._config.rank

    @property
    def config(self) -> WorldConfig:
        """What it was joined with."""
        return self._config

    @property
    def generation(self) -> int:
        """How often this world was assembled, from 1; all members of one assembly have the same."""
        return self._live.membership.generation

    @property
    def state(self) -> WorldState:
        """Where it is in its life."""
        return self._live.state

    @property
    def failure(self) -> BrokenWorldException | None:
        """The first cause, if the world is broken or closed."""
        return self._live.failure

    @property
    def departed(self) -> frozenset[int]:
        """Ranks that left in good order."""
        return self._live.departed

    @property
    def tally(self) -> Tally:
        """What this membership did, over all its generations."""
        total = self._live.tally()
        total.add(self._earlier)
        return total

    def group(self, ranks: Sequence[int], label: str = "") -> Group:
        """Some members as a group of their own; needs no communication.

        Args:
            ranks: world ranks, ours among them, without doubles; the order gives the ranks in the group.
            label: tells groups of the same ranks apart.

        Raises:
            InvalidArgument: no list of whole numbers; a rank out of range, twice, or ours missing.
        """
        check_list(self, "group", "ranks", ranks)
        members = tuple(check_number(self, "group", f"ranks[{place}]", rank) for place, rank in enumerate(ranks))
        inside = all(0 <= r < self.size for r in members)
        if not inside or len(set(members)) != len(members) or self.world_rank not in members:
            raise InvalidArgument(
                self.name,
                f"a group of ranks {list(members)} cannot be made by rank {self.world_rank} of {self.size}",
                cause="a rank is out of range or named twice, or our own is missing",
                rank=self.world_rank,
                operation="group",
            )
        if not isinstance(label, str):
            raise invalid(self, "group", f"label is {label!r}, not text", "pass the same text on every member")
        gid = zlib.crc32(repr((members, label)).encode()) or 1
        return Group(self, members, gid)

    async def leave(self) -> None:
        """Leave in good order: what was sent arrives, then the peers see ``PeerLeft``. Pending operations raise
        ``WorldClosed``."""
        running_loop("leave", self.name, self.world_rank)
        await run_in_thread(f"mw-leave-{self.name}", self._leave)

    def abort(self, reason: str) -> None:
        """Break the world now, here and on every member; returns at once.

        Args:
            reason: one sentence; the members' ``PeerLost`` carries it.
        """
        self._live.abort(reason)

    async def rejoin(self, *, rank: int | None = None, size: int | None = None, timeout: float | None = None) -> World:
        """Assemble the world again under a new generation; every member, or its replacement by ``join``, does the same.

        Args:
            rank: our new rank; None keeps it.
            size: the new number of members; None keeps it.
            timeout: seconds; None is ``join_timeout``.

        Returns:
            This world, active again. A world that is not broken yet is left first.

        Raises:
            StaleGeneration: the others have gone on without us.
            RendezvousError: they did not come, or disagree.
        """
        loop = running_loop("rejoin", self.name, self.world_rank)
        cancelled = threading.Event()
        try:
            await run_in_thread(f"mw-rejoin-{self.name}", self._rejoin, rank, size, timeout, loop, cancelled)
        except asyncio.CancelledError:
            cancelled.set()
            raise
        return self

    def _enter_async(self, operation: str) -> Session:
        """The live session for an operation of the running loop, or a typed error; for the package's own use."""
        session = self._enter_sync(operation)
        try:  # in line: this is the hot path
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise no_loop(operation, self.name, self.world_rank) from None
        if loop is not self._loop:
            self._bind(loop, session, operation)
        return session

    def _enter_sync(self, operation: str) -> Session:
        """The live session for an operation of the calling thread, or a typed error; for the package's own use."""
        if os.getpid() != self._pid:
            raise WrongContext(self.name, "used in a forked child of the process that joined", rank=self.world_rank)
        session = self._live
        failure = session.engine.failure
        if failure is not None:
            raise failure.with_context(operation=operation)
        return session

    def _bind(self, loop: asyncio.AbstractEventLoop, session: Session, operation: str) -> None:
        """Serve ``loop`` from now on: the first one, or the next after the last one was closed."""
        if self._loop is not None and not self._loop.is_closed():
            raise WrongContext(
                self.name, "used in another event loop than the one that joined",
                cause="the loop that it was joined or first awaited in still exists",
                remedy="await it there, close that loop first, or use the synchronous twins in a thread",
                rank=self.world_rank, operation=operation,
            )  # fmt: skip
        self._loop = loop
        session.attach_loop(loop)

    def enter_any(self) -> Session:
        """The last session, whatever its state; for the package's own use."""
        return self._live

    def leave_within(self, linger: float) -> None:
        """Leave, waiting at most ``linger`` seconds for what was sent; for the package's own use."""
        with self._owner.lock:
            self._departures += 1
            live = self._live
        live.leave(linger)
        self._owner.forget(self)

    def _leave(self) -> None:
        self.leave_within(LINGER_SECONDS)

    def _rejoin(
        self,
        rank: int | None,
        size: int | None,
        timeout: float | None,
        loop: asyncio.AbstractEventLoop | None,
        cancelled: threading.Event,
    ) -> None:
        config = self._config_of_rejoin(rank, size, timeout)
        before = self._departures
        if self._live.failure is None:
            self._live.leave()
        loop = loop if loop is not None else self._loop
        session = self._owner.assemble(config, self, loop, cancelled)
        with self._owner.lock:
            wanted = self._departures == before and not cancelled.is_set() and self._owner.lists(self)
            if wanted:
                self._go_on_as(config, session, loop)
        if not wanted:
            session.leave(0.0)
            raise WorldClosed(
                self.name, "the world was left, or its MultiWorld closed, while it rejoined",
                rank=config.rank, generation=session.membership.generation, operation="rejoin",
            )  # fmt: skip

    def _go_on_as(self, config: WorldConfig, session: Session, loop: asyncio.AbstractEventLoop | None) -> None:
        """Take up the next generation."""
        self._loop = loop
        self._earlier.add(self._live.tally())
        self._config, self._live = config, session
        self.ranks = tuple(range(config.size))

    def _config_of_rejoin(self, rank: int | None, size: int | None, timeout: float | None) -> WorldConfig:
        """What to rejoin with, checked before the world that stands is left."""
        was = self._config
        try:
            checked = checked_config(
                was.name, was.rank if rank is None else rank, was.size if size is None else size, was.backend,
                was.device, was.address, was.op_timeout, was.join_timeout if timeout is None else timeout,
                was.heartbeat,
            )  # fmt: skip
        except MultiWorldError as error:
            raise error.with_context(operation="rejoin", generation=self.generation) from None
        return replace(was, rank=checked.rank, size=checked.size, join_timeout=checked.join_timeout)

    def __repr__(self) -> str:
        place = f"rank={self.world_rank}, size={self.size}, generation={self.generation}"
        return f"World({self.name!r}, {place}, state={self.state.value})"
