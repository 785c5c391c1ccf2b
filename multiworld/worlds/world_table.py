"""The worlds of a ``MultiWorld``, those joined and those about to be, and the resources that they share."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from multiworld.config import NetworkSettings, WorldConfig
from multiworld.errors import DescriptorsExhausted, InvalidArgument, RendezvousError, WrongContext, told_of
from multiworld.events import TELLING_SECONDS, Callbacks, EventBus, WorldJoined
from multiworld.process.hub import Hub
from multiworld.process.join_threads import JoinJob, Steps
from multiworld.process.threads import within
from multiworld.rendezvous.join_arguments import check_seconds
from multiworld.rendezvous.joining import STORE_GRACE_SECONDS, Meeting, Rendezvous, store_silent
from multiworld.rendezvous.listing import ListedWorld, listed
from multiworld.session.counters import History
from multiworld.session.session import LINGER_SECONDS, Session
from multiworld.store.sources import HostedStores, StoreLike, StoreSource, parsed
from multiworld.transport.descriptors import cause_of, descriptor_shortage, limit, system_message
from multiworld.worlds.group import Group

#: ``worlds.world.World``, which imports this file
World = TypeVar("World", bound=Group)

#: how long ``close`` waits for joins under way to give up, beyond what it waits for what was sent
GIVING_UP_SECONDS = 0.5
#: how long ``close`` waits for broken worlds to be freed; what takes longer goes on in the background
FREEING_SECONDS = 1.0


class Resources:
    """The hub, the stores and the listeners to events. It does not refer to the ``MultiWorld``, which may be collected.

    Raises:
        DescriptorsExhausted: no file descriptors are free.
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

    def store_silent(self, where: object, job: JoinJob[Any]) -> RendezvousError:
        """Make the error for a store that does not answer."""
        return store_silent(where, self.stores.complaint(where, job.since))

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


class WorldTable(Generic[World]):
    """The worlds of one ``MultiWorld`` that were joined and not left, and the attempts to join or rejoin under way."""

    def __init__(self, resources: Resources) -> None:
        self.resources = resources
        self._lock = threading.Lock()
        self._end = threading.Event()
        self._worlds: dict[str, World] = {}
        self.worlds: Mapping[str, World] = MappingProxyType(self._worlds)
        self._joining: set[str] = set()
        #: what tells the ``WorldStatus`` of the worlds that supervisors keep
        self.wanted: dict[str, Callable[[], Any]] = {}
        #: what is closed before the worlds are left
        self.closers: list[Callable[[], object]] = []
        self._attempts = 0
        self._attempted = threading.Condition(self._lock)
        self._pid = os.getpid()

    def check_usable(self, name: str | None) -> None:
        if os.getpid() != self._pid:
            raise WrongContext(name, "MultiWorld used in a forked child of the process that made it")
        if self._end.is_set():
            raise WrongContext(
                name, "MultiWorld is closed", cause="close() was called, or its block was left", remedy="make a new one"
            )

    def listed(self, store: StoreLike, timeout: float) -> tuple[ListedWorld, ...]:
        """Read the worlds of a store, in a thread: a call of torch's own may wait for far longer than it was told."""
        with told_of(None, None, "list"):
            self.check_usable(None)
            check_seconds("timeout", timeout)
            source = self.resources.stores.reader(parsed(store), store)
            read = functools.partial(listed, source, timeout, self._end.is_set)
            try:
                return within(timeout + STORE_GRACE_SECONDS, read, "mw-list")
            except TimeoutError:
                raise store_silent(source.where, None) from None

    @contextlib.contextmanager
    def joining(self, config: WorldConfig) -> Iterator[None]:
        """Keep the name for a world that is being joined."""
        self.check_usable(config.name)
        with self._lock:
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
            with self._lock:
                self._joining.discard(config.name)

    def add(self, world: World, unwanted: Callable[[], bool]) -> bool:
        """Take a world in, unless it is unwanted by now; whether it is in."""
        with self._lock:
            if unwanted():
                return False
            self._worlds[world.member.name] = world
            world.member.forget = functools.partial(self.forget, world)
            return True

    def readmit(self, world: World) -> bool:
        """Take back a world that rejoins; whether it had been left."""
        name = world.member.name
        self.check_usable(name)
        with self._lock:
            if self._worlds.get(name, world) is not world or name in self._joining:
                raise InvalidArgument(
                    name,
                    "another world of this name was joined here since this one was left",
                    remedy="go on with that one, or leave it first",
                    operation="rejoin",
                )
            new = name not in self._worlds
            self._worlds[name] = world
            return new

    def holds(self, world: World) -> bool:
        """Tell whether ``world`` is one of ours, and not left."""
        return not self._end.is_set() and self._worlds.get(world.member.name) is world

    def forget(self, world: World) -> None:
        """Drop a world that was left."""
        with self._lock:
            if self._worlds.get(world.member.name) is world:
                del self._worlds[world.member.name]

    def giving_up(self, job: JoinJob[Any]) -> Callable[[], bool]:
        """Make what tells whether a join is to be given up. Peers' questions are answered with it, and it lives for
        long: it keeps neither the worlds nor the ``MultiWorld`` alive."""
        given_up, end = job.given_up, self._end
        return lambda: given_up.is_set() or end.is_set()

    def meet(
        self,
        job: JoinJob[Any],
        config: WorldConfig,
        source: StoreSource,
        loop: asyncio.AbstractEventLoop | None,
        since: float,
        kind: Callable[..., Rendezvous],
        operation: str = "join",
        after: int | None = None,
    ) -> Steps[Session]:
        """Meet the other members and begin the next generation; arguments and errors as of ``Rendezvous``, of which
        ``kind`` makes one. Errors are told of ``operation`` in the generation ``after``."""
        hub, bus = self.resources.hub, self.resources.bus
        process, cancelled = (hub.endpoint, hub.monitor.unconnected), self.giving_up(job)
        of_a_join = told_of(config.name, config.rank if config.size else None, operation, after)
        with self._attempting(config.name), of_a_join:
            met = yield from kind(job, *process, config, source, since=since, cancelled=cancelled).run()
            rank, size = met.config.rank, met.config.size
            joined = WorldJoined(
                world=config.name, generation=met.generation, rank=rank, size=size, seconds=met.seconds
            )
            # In the hub's thread, as all events are: after the break of the last generation, and before that of this
            # one, which a peer may bring about at once.
            hub.call(lambda: bus.publish(joined))
            session = self._begun(met)
            try:
                if loop is not None:
                    session.bridge.attach(loop)
            except BaseException:
                session.leave(0.0)  # nothing else refers to it
                raise
            hub.call_and_wait(lambda: None)  # it was told
            return session

    def _begun(self, met: Meeting) -> Session:
        wires = met.wires, met.acceptor, met.claims
        try:
            return Session(self.resources.hub, self.resources.bus, met.config, met.generation, *wires)
        except OSError as error:
            met.acceptor.close()
            met.wires.close()
            cause, remedy = cause_of(error, "the system refuses what a world needs")
            what = f"the members have met, but the world cannot begin: {system_message(error)}"
            raise RendezvousError(what=what, cause=cause, remedy=remedy) from None

    @contextlib.contextmanager
    def _attempting(self, name: str) -> Iterator[None]:
        """An attempt is under way, which ``close`` waits for; none begins once we are closed."""
        with self._lock:
            self._attempts += 1
        try:
            self.check_usable(name)
            yield
        finally:
            with self._lock:
                self._attempts -= 1
                self._attempted.notify_all()

    def close(self, linger: float = LINGER_SECONDS) -> None:
        """Leave every world in good order and free everything, waiting ``linger`` seconds per world for what was sent.

        No world comes in any more. Attempts give up first: they need the hub until they have.
        """
        for closer in tuple(self.closers):
            closer()
        with self._lock:
            if not self._ends():
                return
            self.resources.stores.wake_joins()
            until = min(FREEING_SECONDS, linger + GIVING_UP_SECONDS)
            self._attempted.wait_for(lambda: not self._attempts, until)
        worlds = list(self.worlds.values())
        for world in worlds:
            world.member.leave(linger)
        self.resources.free([world.member.session for world in worlds], min(linger, FREEING_SECONDS))

    def drop(self) -> list[Session] | None:
        """Close without waiting, and without the lock: the collector calls it. Returns the sessions that it leaves;
        None if it was closed before, or in a forked child."""
        if not self._ends():
            return None
        resources, sessions = self.resources, [world.member.session for world in self.worlds.values()]
        resources.hub.call(lambda: resources.drop(sessions))
        return sessions

    def drop_in_child(self) -> None:
        """Leave backends and sockets alone in a forked child."""
        for world in self.worlds.values():
            world.member.session.drop_in_child()
        self.resources.hub.drop_in_child()

    def _ends(self) -> bool:
        """Let no world in any more; False if that was done before, or in a forked child."""
        if self._end.is_set() or os.getpid() != self._pid:
            return False
        self._end.set()
        return True
