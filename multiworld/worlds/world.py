"""A world: one fault domain, its life from join to leave, and back by rejoin."""

from __future__ import annotations

import asyncio
import hashlib
import os
import weakref
import zlib
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

import torch

from multiworld.config import WorldConfig, WorldState
from multiworld.errors import BrokenWorldException, InvalidArgument, MultiWorldError, RendezvousError, WrongContext
from multiworld.events import TELLING_SECONDS
from multiworld.operations import p2p
from multiworld.process.event_loop import check_no_loop, no_loop, running_loop
from multiworld.process.threads import run_in_thread, wait_here, wait_in_loop
from multiworld.rendezvous.join_arguments import Defaults, checked_config
from multiworld.session.counters import Tally
from multiworld.session.orderly_leave import LINGER_SECONDS
from multiworld.tensors.checks import check_list, check_number, invalid
from multiworld.worlds.group import Group
from multiworld.worlds.rejoining import RejoinCall, Rejoins
from multiworld.worlds.twins import SyncGroup, SyncWorldMethods

if TYPE_CHECKING:
    from multiworld.process.join_threads import JoinJob
    from multiworld.session.session import Session
    from multiworld.store.sources import StoreSource


class Owner(Protocol):
    """The ``MultiWorld`` of a world, as the world sees it."""

    def _leave_world(self, world: World, linger: float) -> None:
        """Leave ``world``; blocks for at most ``linger`` seconds, so that what was sent can arrive."""

    def _rejoin_world(self, world: World, config: WorldConfig, loop: asyncio.AbstractEventLoop | None) -> JoinJob[None]:
        """Begin to let ``world`` go on under a new generation, as ``config`` says."""

    def _store_silent(self, config: WorldConfig, where: object, after: int, job: JoinJob[Any]) -> RendezvousError:
        """The error for a store that does not answer."""

    def _told(self) -> Future[None]:
        """Done when callbacks have heard of all events so far, and at once in their own thread."""


class SyncWorld(SyncGroup, SyncWorldMethods["World"]):
    """Synchronous twins of a world's operations and of its life cycle."""

    _group: World

    def _leave(self) -> None:
        check_no_loop("leave", self._group.name, self._group.world_rank)
        self._group._leave_sync()

    def _rejoin(self, rank: int | None, size: int | None, timeout: float | None) -> World:
        check_no_loop("rejoin", self._group.name, self._group.world_rank)
        return self._group._rejoin_sync(rank, size, timeout)


class World(Group):
    """One fault domain: members, a generation, a state. Made by ``MultiWorld.join``.

    When a member is lost, every waiting operation here raises the same first cause and other worlds go on. The object
    survives its generations: after ``rejoin()`` it is the same world under a higher generation.
    """

    def __init__(
        self,
        owner: Owner,
        config: WorldConfig,
        session: Session,
        source: StoreSource,
        loop: asyncio.AbstractEventLoop | None,
    ) -> None:
        self._owner = owner
        self._config = config
        self._current = session
        self._loop = loop
        self._source = source
        self._pid = os.getpid()
        self.torch_device = torch.device(config.device)
        super().__init__(self, tuple(range(config.size)), 0)
        self._sync_world = SyncWorld(self)
        #: how often it was left; who rejoins meanwhile is not taken back in
        self._departures = 0
        #: what the groups made here are, by number
        self._numbers: dict[int, tuple[tuple[int, ...], str]] = {}
        self._groups: weakref.WeakSet[Group] = weakref.WeakSet()
        self._earlier = Tally()
        self._rejoins = Rejoins(self)

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
        return self._current.membership.generation

    @property
    def state(self) -> WorldState:
        """Where it is in its life."""
        return self._current.state

    @property
    def failure(self) -> BrokenWorldException | None:
        """The first cause, if the world is broken or closed."""
        return self._current.failure

    @property
    def on_device(self) -> bool:
        """Whether CUDA tensors travel from device to device, as with NCCL."""
        return self._current.membership.on_device

    @property
    def departed(self) -> frozenset[int]:
        """Ranks that left in good order."""
        return self._current.departed

    @property
    def tally(self) -> Tally:
        """What this membership did, over all its generations."""
        total = Tally()
        total.add(self._earlier)
        total.add(self._current.tally())
        return total

    def group(self, ranks: Sequence[int], label: str = "") -> Group:
        """Some members as a group of their own; needs no communication.

        Args:
            ranks: world ranks, ours among them, without doubles; the order gives the ranks in the group.
            label: tells groups of the same ranks apart. Reuse labels: a group's number is kept until the world rejoins.

        Raises:
            InvalidArgument: no list of whole numbers; a rank out of range, twice, or ours missing; another group that
                was made here has the same number by chance.
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
        identity = repr((members, label)).encode()
        gid = zlib.crc32(identity) or 1
        self._check_number(gid, members, label)
        digest = int.from_bytes(hashlib.blake2b(identity, digest_size=8).digest(), "little")
        made = Group(self, members, gid, digest)
        self._groups.add(made)
        return made

    def _check_number(self, gid: int, members: tuple[int, ...], label: str) -> None:
        """Refuse a group whose number another one has: their messages would cross."""
        ranks, other = self._numbers.setdefault(gid, (members, label))
        if (ranks, other) != (members, label):
            raise InvalidArgument(
                self.name,
                f"the groups of ranks {list(ranks)} (label {other!r}) and {list(members)} (label {label!r}) have the "
                "same number",
                cause="the number is a checksum of ranks and label, and these have the same by chance",
                remedy="pass another label, the same on every member", rank=self.world_rank, operation="group",
            )  # fmt: skip

    async def leave(self) -> None:
        """Leave in good order: what was sent arrives, then the peers see ``PeerLeft``. Pending operations raise
        ``WorldClosed``."""
        await self._leave()

    async def synchronize(self, *, timeout: float | None = None) -> None:
        """Return when all that was enqueued here with ``stream=True`` is done on the device.

        Args:
            timeout: seconds; None is the world's ``op_timeout``.

        Raises:
            PeerLost, OpTimeout, WorldClosed: the world is broken or closed; so it is after a transfer that failed.
        """
        await self._run(timeout, p2p.synchronize)

    def abort(self, reason: str) -> None:
        """Break the world now, here and on every member; returns at once.

        Args:
            reason: one sentence; the members' ``PeerLost`` carries it.
        """
        self._current.abort(reason)

    async def rejoin(self, *, rank: int | None = None, size: int | None = None, timeout: float | None = None) -> World:
        """Assemble a broken world again under a new generation.

        Every member, or its replacement by ``join``, does the same. Each task, thread or callback that notices the
        failure may call it: calls at the same time share one attempt, and a call after it returns at once. A world
        that is active with all its members is not left, unless ``rank`` or ``size`` differ from what they are. To
        assemble such a world anew, call ``abort`` or ``leave`` first.

        Args:
            rank: our new rank; None keeps it.
            size: the new number of members; None keeps it.
            timeout: seconds; None is ``join_timeout``.

        Returns:
            This world, active with all its members.

        Raises:
            StaleGeneration: the others have gone on without us.
            RendezvousError: they did not come, or disagree.
            InvalidArgument: another rank or size than that of a rejoin that is under way here.
        """
        try:
            return await self._rejoin(rank, size, timeout)
        except MultiWorldError as error:
            raise error.without_frames() from error.__cause__  # the caller's line says where

    def _enter_async(self, operation: str) -> Session:
        """The live session for an operation of the running loop, or a typed error."""
        session = self._enter_sync(operation)
        try:  # in line: this is the hot path
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise no_loop(operation, self.name, self.world_rank) from None
        if loop is not self._loop:
            self._bind(loop, session, operation)
        return session

    def _enter_sync(self, operation: str) -> Session:
        """The live session for an operation of the calling thread, or a typed error."""
        if os.getpid() != self._pid:
            raise self._forked()
        session = self._current
        failure = session.engine.failure
        if failure is not None:
            raise failure.with_context(operation=operation)
        return session

    def _forked(self) -> WrongContext:
        return WrongContext(self.name, "used in a forked child of the process that joined", rank=self.world_rank)

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

    def _leave_sync(self, linger: float = LINGER_SECONDS) -> None:
        self._owner._leave_world(self, linger)

    async def _leave(self) -> None:
        running_loop("leave", self.name, self.world_rank)
        await run_in_thread(f"mw-leave-{self.name}", self._leave_sync)

    def _whole(self) -> bool:
        """Whether it is active with all its members: none was lost, none left in good order, or has said so."""
        session = self._current
        if session.failure is None:
            session.hub.call_and_wait(session.control.look)
        return session.failure is None and not session.leaving and not session.departed

    def _begin_rejoin(self, config: WorldConfig, loop: asyncio.AbstractEventLoop | None) -> JoinJob[None]:
        return self._owner._rejoin_world(self, config, loop)

    def _store_silent(self, config: WorldConfig, job: JoinJob[None]) -> RendezvousError:
        return self._owner._store_silent(config, self._source.where, self.generation, job)

    async def _rejoin(self, rank: int | None, size: int | None, timeout: float | None) -> World:
        call = RejoinCall(self, rank, size, timeout, running_loop("rejoin", self.name, self.world_rank))
        over = False
        while not over:
            with self._rejoins.attempt(call) as attempt:
                if attempt is not None:
                    await wait_in_loop(attempt.job.done, call.patience(attempt))
                over = attempt is None or call.is_over(attempt)
        await wait_in_loop(self._owner._told(), TELLING_SECONDS)
        return self

    def _rejoin_sync(self, rank: int | None, size: int | None, timeout: float | None) -> World:
        call = RejoinCall(self, rank, size, timeout, self._loop)
        over = False
        while not over:
            with self._rejoins.attempt(call) as attempt:
                if attempt is not None:
                    wait_here(attempt.job.done, call.patience(attempt))
                over = attempt is None or call.is_over(attempt)
        wait_here(self._owner._told(), TELLING_SECONDS)
        return self

    def _go_on_as(self, config: WorldConfig, session: Session, loop: asyncio.AbstractEventLoop | None) -> None:
        """Take up the next generation."""
        self._loop = loop
        self._earlier.add(self._current.tally())
        self._config, self._current = config, session
        living = {group.gid for group in self._groups}  # they work again in the new generation
        self._numbers = {gid: what for gid, what in self._numbers.items() if gid in living}
        self.ranks = tuple(range(config.size))

    def _config_of_rejoin(self, rank: int | None, size: int | None, timeout: float | None) -> WorldConfig:
        """What to rejoin with, checked before the world is left, or a rejoin of the parent process waited for."""
        if os.getpid() != self._pid:
            raise self._forked()
        was = self._config
        try:
            checked = checked_config(
                Defaults(was.address, was.op_timeout, was.heartbeat, was.network), was.name,
                was.rank if rank is None else rank, was.size if size is None else size, was.backend, was.device,
                None, None, was.join_timeout if timeout is None else timeout, None,
            )  # fmt: skip
        except MultiWorldError as error:
            raise error.with_context(operation="rejoin", generation=self.generation) from None
        return replace(was, rank=checked.rank, size=checked.size, join_timeout=checked.join_timeout)

    def __repr__(self) -> str:
        place = f"rank={self.world_rank}, size={self.size}, generation={self.generation}"
        return f"World({self.name!r}, {place}, state={self.state.value})"
