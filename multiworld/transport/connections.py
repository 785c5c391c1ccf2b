"""What a rendezvous hands to a session."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Protocol


class Connections(Protocol):
    """The connections to the peers, by world rank; see ``rendezvous.wiring.Wires``."""

    @property
    def lanes(self) -> dict[int, socket.socket]: ...
    @property
    def controls(self) -> dict[int, socket.socket]: ...
    @property
    def pulses(self) -> dict[int, socket.socket]: ...
    @property
    def dial_pulse(self) -> Callable[[int, float], socket.socket]: ...


class Closable(Protocol):
    """Something that is closed with the session."""

    def close(self) -> None: ...
