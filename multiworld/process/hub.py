"""The objects that all ``MultiWorld`` of a process share: a reactor, and the liveness and listeners that it serves."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from typing import ClassVar

from multiworld.config import NetworkSettings
from multiworld.liveness.monitor import Monitor
from multiworld.liveness.pulse import Responder
from multiworld.transport.descriptors import reserve
from multiworld.transport.endpoint import Endpoint
from multiworld.transport.reactor import Reactor


class Hub(Reactor):
    """The reactor of this process with its monitor, its responder and its endpoints."""

    _instance: ClassVar[Hub | None] = None
    _guard: ClassVar[threading.Lock] = threading.Lock()

    @classmethod
    def acquire(cls) -> Hub:
        """The hub of this process, started if need be; give it back with ``release``."""
        with cls._guard:
            hub = cls._instance
            if hub is None or hub.pid != os.getpid():
                hub = cls._instance = Hub()
            reserve.fill()
            hub._users += 1
            return hub

    def __init__(self) -> None:
        super().__init__()
        self._users = 0
        self._endpoints: dict[tuple[str, NetworkSettings], Endpoint] = {}
        self._endpoints_guard = threading.Lock()
        self._responder: Responder | None = None
        self._responder_guard = threading.Lock()
        self.monitor = Monitor(self)
        self.start()

    def release(self) -> None:
        """Give the hub back; the last one stops the thread and frees what it held."""
        with self._guard:
            self._users -= 1
            if self._users > 0:
                return
            if Hub._instance is self:
                Hub._instance = None
                reserve.empty()
        self.stop()

    def endpoint(self, address: str, network: NetworkSettings) -> Endpoint:
        """Where peers with these settings reach us at ``address``, made if need be. Not from the hub's thread."""
        with self._endpoints_guard:
            key = address, replace(network, interfaces=())  # these have chosen the address already
            if key not in self._endpoints:
                self._endpoints[key] = Endpoint(self, address, network, self.responder.adopt)
            return self._endpoints[key]

    @property
    def responder(self) -> Responder:
        """The responder that answers the pings of peers, at all addresses; made if need be."""
        with self._responder_guard:
            if self._responder is None:
                self._responder = Responder(self)
                self.on_close(self._responder.close)
            return self._responder

    def drop_in_child(self) -> None:
        """Close our copies in a forked child; its sockets have been closed."""
        if self._responder is not None:
            self._responder.drop_in_child()
