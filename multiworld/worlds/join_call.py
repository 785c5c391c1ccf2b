"""One call of ``join`` under way, waited for in a thread or in an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from multiworld.config import WorldConfig
from multiworld.errors import told_of
from multiworld.events import TELLING_SECONDS
from multiworld.process.join_threads import JoinJob, Steps
from multiworld.rendezvous.joining import STORE_GRACE_SECONDS, Elsewhere, Rendezvous
from multiworld.rendezvous.reassembly import Newcomer, Replacement
from multiworld.session.member import Member
from multiworld.session.session import Session
from multiworld.store.sources import StoreLike, StoreSource, parsed
from multiworld.worlds.world import World
from multiworld.worlds.world_table import WorldTable

#: what meets the members, and with what configuration
Way: TypeAlias = tuple[Callable[..., Rendezvous], WorldConfig]


def as_told(config: WorldConfig, resize: bool) -> Iterator[Way]:
    """The way into a world with this rank, or as a newcomer where there is none."""
    return itertools.repeat((partial(Rendezvous, resize=resize) if config.size else Newcomer, config))


def as_it_is(config: WorldConfig) -> Iterator[Way]:
    """The ways into a world that may have gone on without this rank, in turns; under an identity of its own, so that
    nobody waits for an earlier attempt that was invited."""
    config = replace(config, identity=secrets.token_hex(8))
    door = partial(Newcomer, by_rank=config.size), replace(config, rank=-1, size=0)
    return itertools.cycle(((Replacement, config), door))


class JoinCall:
    """One call of ``join``, under way.

    Args:
        owner: the ``MultiWorld``, which lives as long as the world is held.
        loop: the event loop that drives the world afterwards, if any.
        ways: into the world; the next one is tried where one leads ``Elsewhere``.

    Attributes:
        job: the join itself.
        patience: seconds until it is late, unless it has ended.
    """

    def __init__(
        self,
        owner: object,
        table: WorldTable[World],
        config: WorldConfig,
        store: StoreLike,
        loop: asyncio.AbstractEventLoop | None,
        ways: Iterator[Way],
    ) -> None:
        with told_of(config.name, config.rank):
            where = parsed(store)
        table.check_usable(config.name)
        self._config, self._where, self._resources = config, where, table.resources
        self.patience = config.join_timeout + STORE_GRACE_SECONDS

        def met(job: JoinJob[World], source: StoreSource) -> Steps[Session]:
            while True:
                kind, way = next(ways)
                with contextlib.suppress(Elsewhere):
                    return (yield from table.meet(job, way, source, loop, job.since, kind))

        def steps(job: JoinJob[World]) -> Steps[World]:
            given_up = table.giving_up(job)
            with table.joining(config):
                with told_of(config.name, config.rank):
                    source = table.resources.stores.source(where, store, config, given_up)
                session = yield from met(job, source)
                world = World(Member(owner, session, source, loop), table)
                if not table.add(world, given_up):
                    world.member.leave(0.0)
                    table.check_usable(config.name)
                return world

        self.job = table.resources.stores.threads(where).start(steps, lambda world: world.member.leave(0.0))

    async def see_through(self, wait: Callable[[Future[Any], float], Awaitable[None]]) -> World:
        """Wait, with ``wait``, for the world and until the callbacks have been told; give up if that is interrupted."""
        try:
            await wait(self.job.done, self.patience)
            world = self.joined()
            await wait(self._resources.callbacks.told(), TELLING_SECONDS)
        except BaseException:  # a signal handler may raise anything
            self.give_up()
            raise
        return world

    def joined(self) -> World:
        """Return the world that was joined, or raise the error; a join that is late by now is given up."""
        if not self.job.done.done() and self.job.cancel():
            with told_of(self._config.name, self._config.rank):
                raise self._resources.store_silent(self._where, self.job)
        return self.job.done.result()

    def give_up(self) -> None:
        """Give up, as the caller has stopped waiting; a world that it is in already is left."""
        if not self.job.cancel() and self.job.done.exception() is None:
            self.job.done.result().member.leave(0.0)
