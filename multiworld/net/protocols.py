"""What listeners, heartbeats and stores need of the thread that they run in."""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Protocol


class Reactor(Protocol):
    """A thread with a selector; ``Hub`` is one."""

    def call(self, function: Callable[[], None], /) -> None:
        """Run ``function`` in the thread, soon."""

    def call_later(self, delay: float, function: Callable[[], None], /) -> None:
        """Run ``function`` in the thread after ``delay`` seconds."""

    def call_and_wait(self, function: Callable[[], None], /) -> bool:
        """Run ``function`` in the thread and wait until it is done; False if it was not in time."""

    def watch(self, sock: socket.socket | int, events: int, ready: Callable[[int], None], /) -> None:
        """Call ``ready`` with the events when ``sock`` has them. In the thread only, as ``unwatch``."""

    def unwatch(self, sock: socket.socket | int, /) -> None:
        """Forget ``sock``."""

    def on_close(self, closer: Callable[[], None], /) -> None:
        """Call ``closer`` in the thread when it stops."""
