"""From members that have met to a session: where the rendezvous and the session come together."""

from __future__ import annotations

import asyncio

from multiworld.config import WorldConfig
from multiworld.events import EventBus, WorldJoined
from multiworld.hub import Hub
from multiworld.rendezvous.joining import Meeting
from multiworld.session import Session


def open_session(
    hub: Hub, bus: EventBus, config: WorldConfig, met: Meeting, address: str, loop: asyncio.AbstractEventLoop | None
) -> Session:
    """Begin the generation of ``met``.

    Args:
        hub: of the process.
        bus: where events go.
        config: the membership.
        met: the members and our connections to them.
        address: local address that peers reach us at.
        loop: event loop whose operations the world will serve; None for threads only.
    """
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
