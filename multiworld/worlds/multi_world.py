"""``MultiWorld``: all worlds of a process, the one way in."""

from __future__ import annotations

import asyncio
import time
import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

import torch

from multiworld.config import (
    DEFAULT_JOIN_TIMEOUT,
    DEFAULT_MAX_MESSAGE_BYTES,
    DEFAULT_OP_TIMEOUT,
    Heartbeat,
    OnCancel,
    TcpStoreAddress,
    WorldConfig,
    is_duration,
)
from multiworld.errors import DescriptorsExhausted, InvalidArgument, MultiWorldError, RendezvousError, WorldClosed
from multiworld.events import TELLING_SECONDS, Callbacks, Event, EventBus
from multiworld.process.event_loop import check_no_loop, running_loop
from multiworld.process.hooks import register
from multiworld.process.hub import Hub
from multiworld.process.join_threads import JoinJob, Steps
from multiworld.process.threads import run_in_thread, wait_here, wait_in_loop
from multiworld.rendezvous.join_arguments import Defaults, checked_config
from multiworld.rendezvous.joining import STORE_GRACE_SECONDS, store_silent
from multiworld.session.counters import History
from multiworld.session.orderly_leave import LINGER_SECONDS
from multiworld.session.session import Session
from multiworld.store.sources import HostedStores, StoreLike, StoreSource, parsed
from multiworld.transport.descriptors import descriptor_shortage, limit
from multiworld.transport.network_settings import chosen_address, network_settings
from multiworld.worlds.open_session import opened
from multiworld.worlds.shutdown import FREEING_SECONDS, GIVING_UP_SECONDS, Remains
from multiworld.worlds.twins import SyncMultiWorldMethods
from multiworld.worlds.world import World
from multiworld.worlds.world_table import Roster

if TYPE_CHECKING:
    from typing_extensions import Self


class SyncMultiWorld(SyncMultiWorldMethods[World]):
    """Synchronous twins of ``join`` and ``close``: ``mw.sync.join(...)``."""

    def __init__(self, owner: MultiWorld) -> None:
        self._owner: MultiWorld = owner

    def _join(self, config: WorldConfig, store: StoreLike, resize: bool) -> World:
        check_no_loop("join", config.name, config.rank, of="mw")
        return self._owner._join_sync(config, store, resize)

    def _close(self) -> None:
        check_no_loop("close", of="mw")
        self._owner._close_sync()


class MultiWorld:
    """The worlds of this process.

    Args:
        address: local address that peers reach us at; None: of ``interfaces``, or derived from each world's store.
        op_timeout: default deadline of operations, in seconds. An operation that passes it breaks its world, a receive
            that waits for work included: give that one ``timeout=math.inf``, or set ``op_timeout=math.inf`` here.
        heartbeat: default of how silence is noticed.
        secret: text or bytes that every member proves to know before it is let in, the same for all members;
            None reads ``MULTIWORLD_SECRET``; without one, whoever can reach our ports and knows a claim is let in.
        ports: where our listeners may be, such as ``"29600-29699"`` or a range; None reads ``MULTIWORLD_PORTS``;
            without, the kernel chooses. Gloo's own listeners do not keep to it.
        interfaces: names or networks such as ``("eth0", "10.0.0.0/8")``, where peers reach us at the first that fits;
            None reads ``MULTIWORLD_INTERFACES``, separated by commas.

    Raises:
        InvalidArgument: a value that cannot be right, or no interface fits.
        DescriptorsExhausted: no file descriptors are free.

    Use it as ``async with`` or ``with``; leaving the block leaves every world in good order. One process may have
    several.
    """

    def __init__(
        self,
        *,
        address: str | None = None,
        op_timeout: float = DEFAULT_OP_TIMEOUT,
        heartbeat: Heartbeat | None = None,
        secret: str | bytes | None = None,
        ports: str | range | None = None,
        interfaces: str | Iterable[str] | None = None,
    ) -> None:
        network = network_settings(secret, ports, interfaces)
        if address is None and network.interfaces:
            address = chosen_address(network.interfaces)
        self.defaults = Defaults(address, op_timeout, Heartbeat() if heartbeat is None else heartbeat, network)
        if not is_duration(op_timeout) or not isinstance(self.defaults.heartbeat, Heartbeat):
            raise InvalidArgument(
                what=f"op_timeout is {op_timeout!r}, heartbeat {heartbeat!r}",
                remedy="pass seconds above 0 and a Heartbeat",
            )
        if address is not None and (not isinstance(address, str) or not address):
            raise InvalidArgument(what=f"address is {address!r}, not text", remedy="pass a local address, or None")
        self._callbacks = Callbacks()
        self._bus = EventBus(self._callbacks)
        self._history = History()
        self._bus.attach(self._history.note)
        self._roster = Roster()
        try:
            self._hub = Hub.acquire()
        except OSError as error:
            raise DescriptorsExhausted(
                what=f"a MultiWorld cannot be made: {descriptor_shortage(error) or error}", limit=limit(), need=2
            ) from error
        self._stores = HostedStores(self._hub, network)
        register(self)

    @property
    def sync(self) -> SyncMultiWorld:
        """The synchronous twins of ``join`` and ``close``."""
        return SyncMultiWorld(self)

    @property
    def worlds(self) -> Mapping[str, World]:
        """The worlds joined and not left yet, by name; broken ones included."""
        return self._roster.worlds

    @property
    def history(self) -> History:
        """What befell the worlds so far, in numbers: ``Metrics`` and ``StatusFile`` read it."""
        return self._history

    def __getitem__(self, name: str) -> World:
        """The world of that name; ``InvalidArgument`` if there is none."""
        try:
            return self.worlds[name]
        except (KeyError, TypeError):
            known = ", ".join(map(repr, self.worlds)) or "none"
            raise InvalidArgument(
                str(name), "no such world here", cause=f"joined are: {known}", remedy="join it first"
            ) from None

    async def join(
        self,
        name: str,
        rank: int | None = None,
        size: int | None = None,
        *,
        store: StoreLike = "env://",
        backend: str = "gloo",
        device: torch.device | str | None = None,
        op_timeout: float | None = None,
        heartbeat: Heartbeat | None = None,
        join_timeout: float = DEFAULT_JOIN_TIMEOUT,
        address: str | None = None,
        resize: bool = False,
        on_cancel: OnCancel = "break",
        max_message_bytes: int = DEFAULT_MAX_MESSAGE_BYTES,
    ) -> World:
        """Join the world ``name`` and return when all its members have met.

        Args:
            name: the same on every member; one store may serve many worlds.
            rank: ours, 0 to ``size`` - 1; None reads ``RANK``, as ``torchrun`` sets it.
            size: number of members; None reads ``WORLD_SIZE``.
            store: ``"tcp://host:port"`` (rank 0 hosts it, bound to that address only), ``"file:///path"``, ``"env://"``
                (``MASTER_ADDR`` and ``MASTER_PORT``), a ``TcpStoreAddress`` or ``FileStorePath``, or any
                ``torch.distributed.Store``; of a ``TCPStore`` its address is used, with a connection of our own. A
                store that torch hosts, such as torchrun's, knows no secret: whoever hosts it has to protect it.
            backend: ``"gloo"``, or ``"nccl"`` or ``"torch-nccl"`` for tensors on CUDA devices.
            device: device of the tensors; None is the CPU for Gloo, the current CUDA device for NCCL.
            op_timeout: seconds each operation may take; None is the default of this ``MultiWorld``.
            heartbeat: how silence is noticed; None is the default of this ``MultiWorld``.
            join_timeout: seconds until ``RendezvousError``.
            address: local address that peers reach us at; None: derived from the store's.
            resize: True to wait until the members of an existing world of another size rejoin with ours.
            on_cancel: meaning of a cancelled collective of ours. ``"break"`` breaks the world: all members get a
                ``PeerLost`` whose ``how`` is ``"cancelled"``. ``"finish"`` lets it go on without its caller, who then
                must not repeat it: the others would take the repetition for the next one.
            max_message_bytes: longest message whose length the sender decides (``recv_tensor``, objects), in bytes, its
                shape included; a longer one is refused with ``TensorMismatch``.

        Raises:
            RendezvousError: duplicate rank, other size, members that did not come, store not reachable.
            InvalidArgument: arguments that cannot be right, or a world of this name joined here already.
            BackendUnavailable: unknown backend, or NCCL without CUDA.
            BackendFailed: the environment is set otherwise than the backend needs it.
        """
        rest = op_timeout, join_timeout, heartbeat, resize, on_cancel, max_message_bytes
        config = checked_config(self.defaults, name, rank, size, backend, device, address, *rest)
        try:
            return await self._join(config, store, resize)
        except MultiWorldError as error:
            raise error.without_frames() from error.__cause__  # the caller's line says where

    def serve_store(self, host: str = "127.0.0.1", port: int = 0) -> TcpStoreAddress:
        """Host a store for any number of worlds, bound to ``host`` only.

        torch's own clients (``dist.TCPStore(host, port, is_master=False)``) can use it too, unless there is a secret.

        Args:
            host: local address or name; IPv6 too. ``"0.0.0.0"`` and ``"::"`` listen on all interfaces, and the address
                returned is then the one that ``interfaces`` choose, or that of the default route.
            port: TCP port; 0 takes a free one, of ``ports`` where they are set.

        Returns:
            Its address with the real port, to be given to ``join`` here and on other members. It lives until ``close``.

        Raises:
            RendezvousError: the address or port is in use or not ours.
            InvalidArgument: an address that cannot be right, or no interface fits.
        """
        self._roster.check_usable(None)
        return self._stores.serve(host, port)

    def events(self) -> AsyncIterator[Event]:
        """What happens to the worlds from this call on, for the running event loop.

        Raises:
            WrongContext: no asyncio loop runs; under trio use ``subscribe``.
        """
        return self._bus.stream(running_loop)

    def subscribe(self, callback: Callable[[Event], None]) -> Callable[[], None]:
        """Call ``callback`` for each event from now on; returns what ends that.

        Callbacks run in a thread of their own, one after the other in the order of the events. They may block and call
        anything, such as ``w.sync.rejoin()``; events that happen meanwhile are told afterwards. ``join`` and ``rejoin``
        return when their ``WorldJoined`` was told, unless callbacks take longer than a second.

        Args:
            callback: called with the event; what it raises is logged.
        """
        self._roster.check_usable(None)
        if not callable(callback):
            raise InvalidArgument(what=f"callback is {callback!r}", remedy="pass a function of one event")
        return self._callbacks.subscribe(callback)

    async def close(self) -> None:
        """Leave every world in good order and free everything; nothing is left behind, and the process goes on."""
        await self._close()

    async def __aenter__(self) -> Self:
        running_loop("async with")  # now, and not when the block ends and nothing could be closed
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close_sync()

    async def _close(self) -> None:
        running_loop("close")
        await run_in_thread("mw-close", self._close_sync)

    async def _join(self, config: WorldConfig, store: StoreLike, resize: bool) -> World:
        where = parsed(store, config)
        job = self._begin_join(config, store, where, resize, running_loop("join", config.name))
        try:
            await wait_in_loop(job.done, config.join_timeout + STORE_GRACE_SECONDS)
            world = self._joined(job, config, where)
            await wait_in_loop(self._told(), TELLING_SECONDS)
        except BaseException:
            _give_up(job)
            raise
        return world

    def _join_sync(self, config: WorldConfig, store: StoreLike, resize: bool) -> World:
        """Join, and wait for that in this thread."""
        where = parsed(store, config)
        job = self._begin_join(config, store, where, resize, None)
        try:
            wait_here(job.done, config.join_timeout + STORE_GRACE_SECONDS)
            world = self._joined(job, config, where)
            wait_here(self._told(), TELLING_SECONDS)
        except BaseException:  # a signal handler may raise anything
            _give_up(job)
            raise
        return world

    def _told(self) -> Future[None]:
        return self._callbacks.told()

    def _begin_join(
        self, config: WorldConfig, store: StoreLike, where: object, resize: bool, loop: asyncio.AbstractEventLoop | None
    ) -> JoinJob[World]:
        self._roster.check_usable(config.name)

        def steps(job: JoinJob[World]) -> Steps[World]:
            given_up = self._giving_up(job)
            with self._roster.joining(config):
                source = self._stores.source(where, store, config, given_up)
                session = yield from self._meet(job, config, source, loop, resize, 0, job.since)
                world = World(self, config, session, source, loop)
                if not self._roster.add(world, given_up):
                    world._leave_sync(0.0)
                    self._roster.check_usable(config.name)
                return world

        return self._stores.threads(where).start(steps, lambda world: world._leave_sync(0.0))

    def _joined(self, job: JoinJob[World], config: WorldConfig, where: object) -> World:
        """The world that was joined, or the error; a join that is late by now is given up."""
        if not job.done.done() and job.cancel():
            raise self._store_silent(config, where, 0, job)
        return job.done.result()

    def _store_silent(self, config: WorldConfig, where: object, after: int, job: JoinJob[Any]) -> RendezvousError:
        return store_silent(config, where, after, self._stores.complaint(where, job.since))

    def _giving_up(self, job: JoinJob[Any]) -> Callable[[], bool]:
        """Whether a join is to be given up. Peers' questions are answered with it: it must not keep us alive."""
        given_up, end = job.given_up, self._roster.end
        return lambda: given_up.is_set() or end.is_set()

    def _rejoin_world(self, world: World, config: WorldConfig, loop: asyncio.AbstractEventLoop | None) -> JoinJob[None]:
        self._roster.check_usable(world.name)

        def steps(job: JoinJob[None]) -> Steps[None]:
            before = world._departures
            if world._current.failure is None:
                world._current.leave()
            session = yield from self._meet_again(job, world, config, loop)
            with self._roster.lock:
                wanted = world._departures == before and not job.given_up.is_set() and self._roster.holds(world)
                if wanted:
                    world._go_on_as(config, session, loop)
            if not wanted:
                session.leave(0.0)
                raise WorldClosed(
                    world.name, "the world was left, or its MultiWorld closed, while it rejoined",
                    rank=config.rank, generation=session.membership.generation, operation="rejoin",
                )  # fmt: skip

        return self._stores.threads(world._source.where).start(steps, lambda _: None)

    def _meet_again(
        self, job: JoinJob[None], world: World, config: WorldConfig, loop: asyncio.AbstractEventLoop | None
    ) -> Steps[Session]:
        new = self._roster.readmit(world)
        try:
            return (yield from self._meet(job, config, world._source, loop, True, world.generation, time.monotonic()))
        except BaseException:
            if new:
                self._roster.forget(world)
            raise

    def _leave_world(self, world: World, linger: float) -> None:
        with self._roster.lock:
            world._departures += 1
            current = world._current
        current.leave(linger)
        self._roster.forget(world)

    def _meet(
        self,
        job: JoinJob[Any],
        config: WorldConfig,
        source: StoreSource,
        loop: asyncio.AbstractEventLoop | None,
        resize: bool,
        after: int,
        since: float,
    ) -> Steps[Session]:
        with self._roster.attempting(config.name):
            return (
                yield from opened(
                    job, self._hub, self._bus, config, source, loop,
                    since=since, resize=resize, after=after, cancelled=self._giving_up(job),
                )
            )  # fmt: skip

    def _close_sync(self, linger: float = LINGER_SECONDS) -> None:
        """Close in this thread, waiting ``linger`` seconds per world for what was sent."""
        # Attempts give up now, and need the hub until they have.
        if not self._roster.close(min(FREEING_SECONDS, linger + GIVING_UP_SECONDS), self._stores.wake_joins):
            return
        worlds = list(self.worlds.values())
        for world in worlds:
            world._leave_sync(linger)
        self._remains([world._current for world in worlds]).free(min(linger, FREEING_SECONDS))

    def __del__(self) -> None:
        """Leave what was not closed, so that peers see it end.

        The collector calls this in any thread and in the middle of anything: nothing here blocks, and the hub starts a
        thread for the rest.
        """
        if not hasattr(self, "_stores") or not self._roster.abandon():  # never made whole, or closed
            return
        sessions = [world._current for world in self.worlds.values()]
        self._hub.call(self._remains(sessions).start)
        names = ", ".join(session.name for session in sessions) or "none"
        warnings.warn(
            f"a MultiWorld was dropped without close(); worlds that it leaves now: {names}",
            ResourceWarning, stacklevel=2, source=self,
        )  # fmt: skip

    def _remains(self, sessions: list[Session]) -> Remains:
        return Remains(sessions, self._hub, self._callbacks, self._stores)

    def _drop_in_child(self) -> None:
        for world in self.worlds.values():
            world._current.drop_in_child()
        self._hub.drop_in_child()


def _give_up(job: JoinJob[World]) -> None:
    """Give up a join whose caller has stopped waiting; a world that it is in already is left."""
    if not job.cancel() and job.done.exception() is None:
        job.done.result()._leave_sync(0.0)
