"""Which worlds a ``MultiWorld`` has: those joined, those about to be, and whether any more may come."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType

from multiworld.config import WorldConfig
from multiworld.errors import InvalidArgument, WrongContext
from multiworld.worlds.world import World


class Roster:
    """The worlds of one ``MultiWorld``, and the attempts to join or rejoin that are under way.

    Attributes:
        lock: guards what worlds there are, and which generation of each is the live one.
        end: set once closed; what runs elsewhere looks at this and not at the owner, so that it does not keep it alive.
        worlds: those joined and not left, by name.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.end = threading.Event()
        self._worlds: dict[str, World] = {}
        self.worlds: Mapping[str, World] = MappingProxyType(self._worlds)
        self._joining: set[str] = set()
        self._attempts = 0
        self._attempted = threading.Condition(self.lock)
        self._pid = os.getpid()

    def check_usable(self, name: str | None) -> None:
        if os.getpid() != self._pid:
            raise WrongContext(name, "MultiWorld used in a forked child of the process that made it")
        if self.end.is_set():
            raise WrongContext(
                name, "MultiWorld is closed", cause="close() was called, or its block was left", remedy="make a new one"
            )

    @contextlib.contextmanager
    def joining(self, config: WorldConfig) -> Iterator[None]:
        """Keep the name for a world that is being joined."""
        self.check_usable(config.name)
        with self.lock:
            if config.name in self._worlds or config.name in self._joining:
                raise InvalidArgument(
                    config.name,
                    "this world is joined here already",
                    cause="join was called twice with one name",
                    remedy="use rejoin() to bring it back, or leave() it first",
                    rank=config.rank,
                    operation="join",
                )
            self._joining.add(config.name)
        try:
            yield
        finally:
            with self.lock:
                self._joining.discard(config.name)

    def add(self, world: World, unwanted: Callable[[], bool]) -> bool:
        """Take a world in, unless it is unwanted by now; whether it is in."""
        with self.lock:
            if unwanted():
                return False
            self._worlds[world.name] = world
            return True

    def readmit(self, world: World) -> bool:
        """Take back a world that rejoins; whether it had been left."""
        self.check_usable(world.name)
        with self.lock:
            if self._worlds.get(world.name, world) is not world or world.name in self._joining:
                raise InvalidArgument(
                    world.name,
                    "another world of this name was joined here since this one was left",
                    remedy="go on with that one, or leave it first",
                    operation="rejoin",
                )
            new = world.name not in self._worlds
            self._worlds[world.name] = world
            return new

    def holds(self, world: World) -> bool:
        """Whether ``world`` is one of ours, and not left; under the lock."""
        return not self.end.is_set() and self._worlds.get(world.name) is world

    def forget(self, world: World) -> None:
        """Drop a world that was left."""
        with self.lock:
            if self._worlds.get(world.name) is world:
                del self._worlds[world.name]

    @contextlib.contextmanager
    def attempting(self, name: str) -> Iterator[None]:
        """An attempt is under way, which ``close`` waits for; none begins once we are closed."""
        with self.lock:
            self._attempts += 1
        try:
            self.check_usable(name)
            yield
        finally:
            with self.lock:
                self._attempts -= 1
                self._attempted.notify_all()

    def close(self, seconds: float, wake: Callable[[], None]) -> bool:
        """Let no world in any more, and wait ``seconds`` for attempts, which ``wake`` wakes, to give up; False if that
        was done before."""
        with self.lock:
            if not self.abandon():
                return False
            wake()
            self._attempted.wait_for(lambda: not self._attempts, seconds)
            return True

    def abandon(self) -> bool:
        """The same without waiting, and without the lock: the collector calls it. False in a forked child too."""
        if self.end.is_set() or os.getpid() != self._pid:
            return False
        self.end.set()
        return True
