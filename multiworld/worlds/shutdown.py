"""The end of a ``MultiWorld``, closed or dropped: what it held is freed, and peers see its worlds end."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from multiworld.events import TELLING_SECONDS

if TYPE_CHECKING:
    from multiworld.events import Callbacks
    from multiworld.process.hub import Hub
    from multiworld.session.session import Session
    from multiworld.store.sources import HostedStores

#: how long ``close`` waits for joins under way to give up, beyond what it waits for what was sent
GIVING_UP_SECONDS = 0.5
#: how long ``close`` waits for broken worlds to be freed; what takes longer goes on in the background
FREEING_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Remains:
    """What is left to be freed of a ``MultiWorld`` that is closed or gone.

    Attributes:
        sessions: the last one of each world.
        hub: given back.
        callbacks: ended once they have been told the last events.
        stores: hosted no more.
    """

    sessions: list[Session]
    hub: Hub
    callbacks: Callbacks
    stores: HostedStores

    def start(self) -> None:
        """Leave the worlds and free everything, in a thread."""
        threading.Thread(target=self._leave, name="mw-drop", daemon=True).start()

    def _leave(self) -> None:
        for session in self.sessions:
            session.leave()
        self.free(FREEING_SECONDS)

    def free(self, seconds: float) -> None:
        """Free everything of worlds that were left; waits at most ``seconds`` for each kind of thread to end."""
        until = time.monotonic() + seconds
        for session in self.sessions:  # what broke shortly before is freed in the background
            session.freed.wait(max(0.0, until - time.monotonic()))
        self.stores.close()
        self.hub.call_and_wait(self.callbacks.end, TELLING_SECONDS)  # there: after the last events
        self.hub.release()
        self.callbacks.join(seconds)
