"""``WatchDog``: reports broken worlds, as programs for pymultiworld 0.2.3 expect.

The watching itself is built into every world, in a thread of its own; this object passes its findings on. Unlike
pymultiworld's it neither kills nor signals a process.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
from collections.abc import Callable
from functools import partial
from typing import Any

from multiworld.events import Event, WorldBroken
from multiworld.worlds.multi_world import MultiWorld


class WatchDog:
    """Puts the name of every world that breaks into ``action_q``.

    Args:
        event_q: where pymultiworld announced worlds; taken and left alone, since worlds are watched from their start.
        action_q: gets the names, in the running event loop.
    """

    def __init__(self, event_q: queue.Queue[Any], action_q: asyncio.Queue[str]) -> None:
        self.event_q = event_q
        self.action_q = action_q
        self._loop = asyncio.get_running_loop()
        self._unsubscribe: Callable[[], None] = lambda: None

    def watch(self, worlds: MultiWorld, clean_up: Callable[[str], None]) -> None:
        """Watch ``worlds``; call ``clean_up`` with the name of each that breaks, in the event loop."""
        self._unsubscribe = worlds.subscribe(partial(self._heard, clean_up))

    def close(self) -> None:
        self._unsubscribe()

    def _heard(self, clean_up: Callable[[str], None], event: Event) -> None:
        if isinstance(event, WorldBroken):
            with contextlib.suppress(RuntimeError):  # the loop is closed: the reader has gone
                self._loop.call_soon_threadsafe(self._tell, clean_up, event.world)

    def _tell(self, clean_up: Callable[[str], None], world_name: str) -> None:
        self.action_q.put_nowait(world_name)
        clean_up(world_name)
