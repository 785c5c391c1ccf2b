"""A call of ``join``, waited for in a thread or in an event loop."""

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
from multiworld.worlds.world_table import Resources, WorldTable

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


async def join(
    owner: object,
    table: WorldTable[World],
    config: WorldConfig,
    store: StoreLike,
    loop: asyncio.AbstractEventLoop | None,
    ways: Iterator[Way],
    wait: Callable[[Future[Any], float], Awaitable[None]],
) -> World:
    """Join a world, and return it once the callbacks have been told; give up if the wait for that is interrupted.

    Args:
        owner: the ``MultiWorld``, which lives as long as the world is held.
        loop: the event loop that drives the world afterwards, if any.
        ways: into the world; the next one is tried where one leads ``Elsewhere``.
        wait: waits for a future for some seconds, in this thread or in an event loop.
    """
    with told_of(config.name, config.rank):
        where = parsed(store)
    table.check_usable(config.name)
    resources = table.resources

    def met(job: JoinJob[World], source: StoreSource) -> Steps[Session]:
        while True:
            kind, way = next(ways)
            with contextlib.suppress(Elsewhere):
                return (yield from table.meet(job, way, source, loop, job.since, kind))

    def steps(job: JoinJob[World]) -> Steps[World]:
        given_up = table.giving_up(job)
        with table.joining(config):
            with told_of(config.name, config.rank):
                source = resources.stores.source(where, store, config, given_up)
            session = yield from met(job, source)
            world = World(Member(owner, session, source, loop), table)
            if not table.add(world, given_up):
                world.member.leave(0.0)
                table.check_usable(config.name)
            return world

    job = resources.stores.threads(where).start(steps, lambda world: world.member.leave(0.0))
    try:
        await wait(job.done, config.join_timeout + STORE_GRACE_SECONDS)
        world = _outcome(job, config, resources, where)
        await wait(resources.callbacks.told(), TELLING_SECONDS)
    except BaseException:  # a signal handler may raise anything
        if not job.cancel() and job.done.exception() is None:
            job.done.result().member.leave(0.0)
        raise
    return world


def _outcome(job: JoinJob[World], config: WorldConfig, resources: Resources, where: object) -> World:
    """The world that was joined; raises its error, or that of a store that does not answer where it is late."""
    if job.cancel():
        with told_of(config.name, config.rank):
            raise resources.store_silent(where, job)
    return job.done.result()
