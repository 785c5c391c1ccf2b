"""From a rendezvous to a session: the members meet, and the generation of their world begins."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from multiworld.config import WorldConfig
from multiworld.events import EventBus, WorldJoined
from multiworld.process.hub import Hub
from multiworld.process.join_threads import JoinJob, Steps
from multiworld.rendezvous.joining import Meeting, Rendezvous
from multiworld.session.session import Session
from multiworld.store.sources import StoreSource


def opened(
    job: JoinJob[Any],
    hub: Hub,
    bus: EventBus,
    config: WorldConfig,
    source: StoreSource,
    loop: asyncio.AbstractEventLoop | None,
    *,
    since: float,
    resize: bool,
    after: int,
    cancelled: Callable[[], bool],
) -> Steps[Session]:
    """Meet the other members and begin the next generation; arguments and errors as of ``Rendezvous``."""
    process = hub.endpoint, hub.monitor.unconnected
    rendezvous = Rendezvous(job, *process, config, source, since=since, resize=resize, after=after, cancelled=cancelled)
    met = yield from rendezvous.run()
    return _session_of(hub, bus, config, met, source.address, loop)


def _session_of(
    hub: Hub, bus: EventBus, config: WorldConfig, met: Meeting, address: str, loop: asyncio.AbstractEventLoop | None
) -> Session:
    """Begin the generation of ``met``, and serve ``loop``, if there is one."""
    joined = WorldJoined(
        world=config.name, generation=met.generation, rank=config.rank, size=config.size, seconds=met.seconds
    )
    # In the hub's thread, as all events are: after the break of the last generation, and before that of this one,
    # which a peer may bring about at once.
    hub.call_and_wait(lambda: bus.publish(joined))
    session = Session(hub, bus, config, met.generation, met.wires, met.acceptor, met.claims, address)
    try:
        if loop is not None:
            session.attach_loop(loop)
    except BaseException:
        session.leave(0.0)  # nobody else knows it
        raise
    return session
