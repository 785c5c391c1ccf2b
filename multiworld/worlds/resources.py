"""Resources that the worlds of one ``MultiWorld`` share, until they are freed at its end."""

from __future__ import annotations

import threading
import time
from typing import Any

from multiworld.config import NetworkSettings, WorldConfig
from multiworld.errors import DescriptorsExhausted, RendezvousError
from multiworld.events import TELLING_SECONDS, Callbacks, EventBus
from multiworld.process.hub import Hub
from multiworld.process.join_threads import JoinJob
from multiworld.rendezvous.joining import store_silent
from multiworld.session.counters import History
from multiworld.session.session import Session
from multiworld.store.sources import HostedStores
from multiworld.transport.descriptors import descriptor_shortage, limit

#: how long ``close`` waits for broken worlds to be freed; what takes longer goes on in the background
FREEING_SECONDS = 1.0


class Resources:
    """The hub, the stores and the listeners to events. It does not refer to the ``MultiWorld``, which may be collected.

    Raises:
        DescriptorsExhausted: no file descriptors are free.

    Attributes:
        hub: shared with other ``MultiWorld`` objects of the process.
        callbacks: ended once they have been told the last events.
        bus: where sessions publish events.
        history: counts of the events so far.
        stores: hosted here until the end.
    """

    def __init__(self, network: NetworkSettings) -> None:
        self.callbacks = Callbacks()
        self.bus = EventBus(self.callbacks)
        self.history = History()
        self.bus.attach(self.history.note)
        try:
            self.hub = Hub.acquire()
        except OSError as error:
            what = f"a MultiWorld cannot be made: {descriptor_shortage(error) or error}"
            raise DescriptorsExhausted(what=what, limit=limit(), need=2) from error
        self.stores = HostedStores(self.hub, network)

    def store_silent(self, config: WorldConfig, where: object, after: int, job: JoinJob[Any]) -> RendezvousError:
        """Make the error for a store that does not answer."""
        return store_silent(config, where, after, self.stores.complaint(where, job.since))

    def drop(self, sessions: list[Session]) -> None:
        """Leave the worlds and free everything, in a thread."""

        def leave() -> None:
            for session in sessions:
                session.leave()
            self.free(sessions, FREEING_SECONDS)

        threading.Thread(target=leave, name="mw-drop", daemon=True).start()

    def free(self, sessions: list[Session], seconds: float) -> None:
        """Free everything of worlds that were left; waits at most ``seconds`` for each kind of thread to end."""
        until = time.monotonic() + seconds
        for session in sessions:  # what broke shortly before is freed in the background
            session.freed.wait(max(0.0, until - time.monotonic()))
        self.stores.close()
        self.hub.call_and_wait(self.callbacks.end, TELLING_SECONDS)  # there: after the last events
        self.hub.release()
        self.callbacks.join(seconds)
