"""A world: one fault domain, its life from join to leave, and back by rejoin."""

from __future__ import annotations

import asyncio
import hashlib
import time
import weakref
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from multiworld.config import WorldConfig, WorldState, whole_number
from multiworld.errors import BrokenWorldException, InvalidArgument, MultiWorldError, TooFewMembers, WorldClosed
from multiworld.operations import objects
from multiworld.process.event_loop import check_no_loop, running_loop
from multiworld.process.threads import run_in_thread, wait_in_loop
from multiworld.rendezvous.agreement import Roll
from multiworld.rendezvous.joining import Rendezvous
from multiworld.rendezvous.ledger import Claim
from multiworld.rendezvous.reassembly import Reassembly
from multiworld.session.counters import Counters
from multiworld.tensors.checks import check_list, check_number, invalid
from multiworld.worlds.group import Group, SyncGroup
from multiworld.worlds.rejoining import Change, RejoinCall, Rejoins
from multiworld.worlds.twins import twin, waited_here

if TYPE_CHECKING:
    from multiworld.process.join_threads import JoinJob, Steps
    from multiworld.session.member import Member, WorldMember
    from multiworld.session.session import Session
    from multiworld.worlds.world_table import WorldTable


class World(Group):
    """One fault domain: members, a generation, a state. Made by ``MultiWorld.join``.

    When a member is lost, every waiting operation here raises the same first cause and other worlds go on. The object
    survives its generations: after ``rejoin()`` it is the same world under a higher generation.
    """

    _group: World  #: itself, for what its synchronous twin shares with it

    def __init__(self, member: Member, table: WorldTable[World]) -> None:
        super().__init__(member, tuple(range(member.config.size)), 0)
        self._table = table
        #: ranks and label of the groups made here, by number
        self._numbers: dict[int, tuple[tuple[int, ...], str]] = {}
        self._groups: weakref.WeakSet[Group] = weakref.WeakSet()
        self._rejoins = Rejoins(member, table.resources, self._begin_rejoin)
        self._sync_world = SyncWorld(self)

    @property
    def sync(self) -> SyncWorld:
        """The synchronous twins of all operations, ``leave`` and ``rejoin``."""
        return self._sync_world

    @property
    def name(self) -> str:
        """The world's name."""
        return self.member.name

    @property
    def world_rank(self) -> int:
        """Our rank in the world."""
        return self.member.world_rank

    @property
    def config(self) -> WorldConfig:
        """Settings that it was joined with."""
        return self.member.config

    @property
    def generation(self) -> int:
        """Number of times that this world was assembled, from 1; all members of one assembly have the same."""
        return self.member.generation

    @property
    def state(self) -> WorldState:
        """Its place in its life: active, broken or closed."""
        return self.member.session.state

    @property
    def failure(self) -> BrokenWorldException | None:
        """The first cause, if the world is broken or closed."""
        return self.member.session.failure

    @property
    def on_device(self) -> bool:
        """True if CUDA tensors travel from device to device, as with NCCL."""
        return self.member.on_device

    @property
    def departed(self) -> frozenset[int]:
        """Ranks that left in good order."""
        return self.member.session.departed

    @property
    def tally(self) -> Counters:
        """Counts of what this membership did, over all its generations."""
        return self.member.counters()

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
            what = f"a group of ranks {list(members)} cannot be made by rank {self.world_rank} of {self.size}"
            cause = "a rank is out of range or named twice, or our own is missing"
            raise InvalidArgument(self.name, what, cause=cause, rank=self.world_rank, operation="group")
        if not isinstance(label, str):
            raise invalid(self, "group", f"label is {label!r}, not text", "pass the same text on every member")
        identity = repr((members, label)).encode()
        gid = zlib.crc32(identity) or 1
        self._check_number(gid, members, label)
        digest = int.from_bytes(hashlib.blake2b(identity, digest_size=8).digest(), "little")
        made = Group(self.member, members, gid, digest)
        self._groups.add(made)
        return made

    def _check_number(self, gid: int, members: tuple[int, ...], label: str) -> None:
        """Refuse a group whose number another one has: their messages would cross."""
        ranks, other = self._numbers.setdefault(gid, (members, label))
        if (ranks, other) != (members, label):
            both = f"{list(ranks)} (label {other!r}) and {list(members)} (label {label!r})"
            cause = "the number is a checksum of ranks and label, and these have the same by chance"
            remedy = "pass another label, the same on every member"
            what, us = f"the groups of ranks {both} have the same number", self.world_rank
            raise InvalidArgument(self.name, what, cause=cause, remedy=remedy, rank=us, operation="group")

    def process_group_as_default(self) -> Any:
        """Make ``process_group`` the default group of torch.distributed, and return it.

        Raises:
            InvalidArgument: there is another default group.
        """
        return self.process_group.become_default()

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
        with self._call(self, "synchronize", timeout) as call:
            await call.done(call.engine.synchronize())

    def abort(self, reason: str) -> None:
        """Break the world now, here and on every member; returns at once.

        Args:
            reason: one sentence; the members' ``PeerLost`` carries it.
        """
        self.member.session.abort(reason)

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

    async def shrink(self, *, min_size: int = 1, timeout: float | None = None) -> World:
        """Go on with the members that are left, as the next generation; ranks are packed in the old order.

        All members that are left call it, and may do so as ``rejoin`` may be called. They agree on who is left, also
        where more of them are lost meanwhile. Two parts of a world never both go on: see ``docs/elastic.md``.

        Args:
            min_size: the number of members below which the world stays broken.
            timeout: seconds; None is ``join_timeout``.

        Returns:
            This world, active; ``members`` says who is left.

        Raises:
            TooFewMembers: fewer than ``min_size`` are left.
            StaleGeneration: the others have gone on without us: we were silent for too long, or cut off.
            RendezvousError: a member that runs did not call it, or calls another method.
            InvalidArgument: a DeviceMesh keeps the present size, or ``min_size`` cannot be right.
        """
        world = self._group
        try:
            change = Change(world._checked_min_size(min_size))
            world._check_resizable("shrink")
            await self._rejoin(None, None, timeout, change)
            if world.size < min_size:  # it was whole, and may have had fewer before
                what, where = f"the world has {world.size} members, and min_size is {min_size}", world.member.session
                raise TooFewMembers(world.name, what, left=world.size, **where.membership.where("shrink"))
        except MultiWorldError as error:
            raise error.without_frames() from error.__cause__  # the caller's line says where
        return world

    async def grow(self, *, timeout: float | None = None) -> World:
        """Take in the newcomers that wait, see ``pending``, and go on with them as the next generation.

        It is a collective: all members call it at the same point of their work. Rank 0 decides who comes in; if nobody
        waits, the world goes on as it is. Ranks stay, and newcomers get the next ones. Who is lost meanwhile is left
        out, as with ``shrink``.

        Args:
            timeout: seconds; None is the world's ``op_timeout``, and then ``join_timeout``.

        Raises:
            PeerLost, OpTimeout, WorldClosed: the world is broken or closed; call ``shrink`` or ``rejoin``.
            StaleGeneration, RendezvousError, InvalidArgument: as ``shrink``.
        """
        try:
            self._group._check_resizable("grow")
            with self._call(self, "grow", timeout) as call:
                seen = [claim.packed() for claim in self.member.session.door.guests]
                told = await call.done(objects.broadcast_object(call.engine, self, seen, 0, ()))
            change = Change(guests=tuple(map(Claim.unpacked, told)))
            return await self._rejoin(None, None, timeout, change) if told else self._group
        except MultiWorldError as error:
            raise error.without_frames() from error.__cause__  # the caller's line says where

    @property
    def members(self) -> tuple[WorldMember, ...]:
        """The members by rank, each with its identity, which stays the same in all generations."""
        return self.member.members

    @property
    def pending(self) -> tuple[str, ...]:
        """Identities of the newcomers that wait, as rank 0 has told so far; does not block. See ``grow``."""
        return self.member.session.door.waiting

    def _check_resizable(self, operation: str) -> None:
        """Raise ``InvalidArgument`` while a DeviceMesh keeps the present size of the world, or of a group of it."""
        for group in (self, *self._groups):
            if group._process_group is not None:
                group._process_group.check_resizable(self.world_rank, operation)

    def _checked_min_size(self, min_size: int) -> int:
        least = whole_number(min_size)
        if least is None or least < 1:
            raise invalid(self, "shrink", f"min_size is {min_size!r}", "pass a number of members")
        return least

    async def _leave(self) -> None:
        running_loop("leave", self.name, self.world_rank)
        await run_in_thread(f"mw-leave-{self.name}", self.member.leave)

    async def _rejoin(
        self, rank: int | None, size: int | None, timeout: float | None, change: Change | None = None
    ) -> World:
        loop = running_loop(change.operation if change else "rejoin", self.name, self.world_rank)
        call = RejoinCall(self._rejoins, rank, size, timeout, loop, change)
        await call.see_through(wait_in_loop)
        return self

    def _begin_rejoin(
        self, config: WorldConfig, loop: asyncio.AbstractEventLoop | None, change: Change | None
    ) -> JoinJob[None]:
        """Begin to go on under a new generation, as ``config`` and ``change`` say."""
        table, member = self._table, self.member
        table.check_usable(self.name)

        def steps(job: JoinJob[None]) -> Steps[None]:
            before = member.departures
            if member.session.failure is None:
                member.session.leave(returns=True)
            kept = member.session.kept()
            try:
                kind = partial(self._next_meeting(change), kept=kept)
                operation = change.operation if change else "rejoin"
                session = yield from self._meet_again(job, config, loop, kind, operation)
            finally:
                kept.close()
            wanted = lambda: not job.given_up.is_set() and table.holds(self)  # noqa: E731
            if member.renew(session, loop, before, wanted):
                self._take_up_groups(packed=change is not None)
                return
            session.leave(0.0)
            what = "the world was left, or its MultiWorld closed, while it rejoined"
            raise WorldClosed(self.name, what, **session.membership.where("rejoin"))

        return table.resources.stores.threads(member.source.where).start(steps, lambda _: None)

    def _next_meeting(self, change: Change | None) -> Callable[..., Rendezvous]:
        if change is None:
            return partial(Rendezvous, resize=True, after=self.generation)
        members = tuple(self.member.session.claims)
        roll = Roll(self.generation, members, change.guests, self.member.gone(), change.min_size)
        return partial(Reassembly, roll)

    def _meet_again(
        self,
        job: JoinJob[None],
        config: WorldConfig,
        loop: asyncio.AbstractEventLoop | None,
        kind: Callable[..., Rendezvous],
        operation: str,
    ) -> Steps[Session]:
        table = self._table
        new = table.readmit(self)
        try:
            since, after = time.monotonic(), self.generation
            return (yield from table.meet(job, config, self.member.source, loop, since, kind, operation, after))
        except BaseException:
            if new:
                table.forget(self)
            raise

    def _take_up_groups(self, *, packed: bool) -> None:
        """Let those that are still held work again in the new generation; where ranks were ``packed``, with the members
        that are left."""
        if packed and self._groups:
            new = {member.old_rank: member.rank for member in self.members}
            for group in self._groups:
                group.ranks = tuple(new[rank] for rank in group.ranks if rank in new)
        living = {group.gid: group.ranks for group in self._groups}
        self._numbers = {gid: (living[gid], what[1]) for gid, what in self._numbers.items() if gid in living}
        self.ranks = tuple(range(self.member.config.size))
        for group in (self, *self._groups):
            if group._process_group is not None:
                group._process_group.renewed()

    def __repr__(self) -> str:
        place = f"rank={self.world_rank}, size={self.size}, generation={self.generation}"
        return f"World({self.name!r}, {place}, state={self.state.value})"


class SyncWorld(SyncGroup):
    """Synchronous twins of a world's operations and of its life cycle."""

    _group: World
    leave = twin(World.leave)
    synchronize = twin(World.synchronize)
    rejoin = twin(World.rejoin)
    shrink = twin(World.shrink)
    grow = twin(World.grow)

    async def _leave(self) -> None:
        check_no_loop("leave", self.member.name, self.member.world_rank)
        self.member.leave()

    async def _rejoin(
        self, rank: int | None, size: int | None, timeout: float | None, change: Change | None = None
    ) -> World:
        member = self.member
        check_no_loop(change.operation if change else "rejoin", member.name, member.world_rank)
        await RejoinCall(self._group._rejoins, rank, size, timeout, member.loop, change).see_through(waited_here)
        return self._group
