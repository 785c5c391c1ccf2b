"""``MultiWorld``: all worlds of a process, the one way in."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING

import torch

from multiworld.breaking import LINGER_SECONDS, drop_in_child
from multiworld.config import (
    DEFAULT_JOIN_TIMEOUT,
    DEFAULT_OP_TIMEOUT,
    Heartbeat,
    TcpStoreAddress,
    WorldConfig,
    is_duration,
)
from multiworld.errors import InvalidArgument, WrongContext
from multiworld.events import Event, EventBus
from multiworld.net.hub import Hub
from multiworld.process import register
from multiworld.rendezvous.joining import STORE_GRACE_SECONDS, assemble, store_silent
from multiworld.rendezvous.settings import check_resize, checked_config
from multiworld.rendezvous.stores import StoreBook, StoreLike, StoreSource
from multiworld.threads import run_in_thread, within
from multiworld.world import World

if TYPE_CHECKING:
    from typing_extensions import Self

    from multiworld.session import Session


#: how long ``close`` waits for broken worlds to be freed; what takes longer goes on in the background
FREEING_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Defaults:
    """What ``join`` uses where it is not told otherwise; fields as in ``WorldConfig``."""

    address: str | None
    op_timeout: float
    heartbeat: Heartbeat


class Attempt:
    """One call of ``join``: whether its caller has given up, and the world once it is in; both under the owner's
    lock."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self.world: World | None = None


class SyncMultiWorld:
    """Synchronous twins of ``join`` and ``close``: ``mw.sync.join(...)``."""

    def __init__(self, owner: MultiWorld) -> None:
        self._owner = owner

    def join(
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
    ) -> World:
        """``join``, waiting in this thread; the world may later be awaited on from one event loop, the first that
        does."""
        defaults = self._owner.defaults
        config = checked_config(
            name, rank, size, backend, device, defaults.address if address is None else address,
            defaults.op_timeout if op_timeout is None else op_timeout, join_timeout,
            defaults.heartbeat if heartbeat is None else heartbeat,
        )  # fmt: skip
        check_resize(config, resize)
        return self._owner.admit(config, store, resize, None, Attempt())

    def close(self) -> None:
        """``close``, waiting in this thread."""
        self._owner.shut()


class MultiWorld:
    """The worlds of this process.

    Args:
        address: local address that peers reach us at; None: derived from each world's store.
        op_timeout: default deadline of operations, in seconds.
        heartbeat: default of how silence is noticed.

    Use it as ``async with`` or ``with``; leaving the block leaves every world in good order. One process may have
    several.
    """

    def __init__(
        self,
        *,
        address: str | None = None,
        op_timeout: float = DEFAULT_OP_TIMEOUT,
        heartbeat: Heartbeat | None = None,
    ) -> None:
        self.defaults = Defaults(address, op_timeout, Heartbeat() if heartbeat is None else heartbeat)
        if not is_duration(op_timeout) or not isinstance(self.defaults.heartbeat, Heartbeat):
            raise InvalidArgument(
                what=f"op_timeout is {op_timeout!r}, heartbeat {heartbeat!r}",
                remedy="pass seconds above 0 and a Heartbeat",
            )
        if address is not None and (not isinstance(address, str) or not address):
            raise InvalidArgument(what=f"address is {address!r}, not text", remedy="pass a local address, or None")
        self._bus = EventBus()
        #: what worlds there are, and which generation of each is the live one
        self.lock = threading.Lock()
        self._worlds: dict[str, World] = {}
        self._joining: set[str] = set()
        self._stores = StoreBook()
        self._hub = Hub.acquire()
        self._closed = False
        self._pid = os.getpid()
        self._sync = SyncMultiWorld(self)
        register(self)

    @property
    def sync(self) -> SyncMultiWorld:
        """The synchronous twins of ``join`` and ``close``."""
        return self._sync

    @property
    def worlds(self) -> Mapping[str, World]:
        """The worlds joined and not left yet, by name; broken ones included."""
        return MappingProxyType(self._worlds)

    def __getitem__(self, name: str) -> World:
        """The world of that name; ``InvalidArgument`` if there is none."""
        try:
            return self._worlds[name]
        except (KeyError, TypeError):
            known = ", ".join(map(repr, self._worlds)) or "none"
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
    ) -> World:
        """Join the world ``name`` and return when all its members have met.

        Args:
            name: the same on every member; one store may serve many worlds.
            rank: ours, 0 to ``size`` - 1; None reads ``RANK``, as ``torchrun`` sets it.
            size: number of members; None reads ``WORLD_SIZE``.
            store: ``"tcp://host:port"`` (rank 0 hosts it, bound to that address only), ``"file:///path"``, ``"env://"``
                (``MASTER_ADDR`` and ``MASTER_PORT``), a ``TcpStoreAddress`` or ``FileStorePath``, or any
                ``torch.distributed.Store``.
            backend: ``"gloo"`` or ``"nccl"``.
            device: device of the tensors; None is the CPU for Gloo, the current CUDA device for NCCL.
            op_timeout: seconds each operation may take; None is the default of this ``MultiWorld``.
            heartbeat: how silence is noticed; None is the default of this ``MultiWorld``.
            join_timeout: seconds until ``RendezvousError``.
            address: local address that peers reach us at; None: derived from the store's.
            resize: True to wait until the members of an existing world of another size rejoin with ours.

        Raises:
            RendezvousError: duplicate rank, other size, members that did not come, store not reachable.
            InvalidArgument: arguments that cannot be right, or a world of this name joined here already.
            BackendUnavailable: unknown backend, or NCCL without CUDA.
        """
        defaults = self.defaults
        config = checked_config(
            name, rank, size, backend, device, defaults.address if address is None else address,
            defaults.op_timeout if op_timeout is None else op_timeout, join_timeout,
            defaults.heartbeat if heartbeat is None else heartbeat,
        )  # fmt: skip
        check_resize(config, resize)
        attempt = Attempt()
        loop = asyncio.get_running_loop()
        try:
            return await run_in_thread(f"mw-join-{name}", self.admit, config, store, resize, loop, attempt)
        except asyncio.CancelledError:
            with self.lock:
                attempt.cancelled.set()
            if attempt.world is not None:  # it was in already, and the caller never got it; nothing in it blocks yet
                attempt.world.leave_within(0.0)
            raise

    def serve_store(self, host: str = "127.0.0.1", port: int = 0) -> TcpStoreAddress:
        """Host a store for any number of worlds, bound to ``host`` only.

        Args:
            host: local address.
            port: TCP port; 0 takes a free one.

        Returns:
            Its address with the real port, to be given to ``join`` here and on other members. It lives until ``close``.
        """
        self._check_usable(None)
        return self._stores.serve(host, port)

    def events(self) -> AsyncIterator[Event]:
        """What happens to the worlds from this call on, for the running event loop."""
        return self._bus.stream()

    def subscribe(self, callback: Callable[[Event], None]) -> Callable[[], None]:
        """Call ``callback`` for each event, in the thread where it happens; returns what ends it."""
        self._check_usable(None)
        if not callable(callback):
            raise InvalidArgument(what=f"callback is {callback!r}", remedy="pass a function of one event")
        return self._bus.subscribe(callback)

    async def close(self) -> None:
        """Leave every world in good order and free everything; nothing is left behind, and the process goes on."""
        await run_in_thread("mw-close", self.shut)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.shut()

    def admit(
        self,
        config: WorldConfig,
        store: StoreLike,
        resize: bool,
        loop: asyncio.AbstractEventLoop | None,
        attempt: Attempt,
    ) -> World:
        """Join in this thread; for the package's own use."""
        self._reserve(config)
        try:
            source = self._stores.source(store, config)
            session = self._assemble(config, source, loop, resize, 0, attempt.cancelled)
            world = World(self, config, session, source, loop)
            with self.lock:
                if not self._closed and not attempt.cancelled.is_set():
                    self._worlds[config.name] = attempt.world = world
            if attempt.world is None:
                world.leave_within(0.0)
                self._check_usable(config.name)
            return world
        finally:
            with self.lock:
                self._joining.discard(config.name)

    def assemble(
        self,
        config: WorldConfig,
        world: World,
        loop: asyncio.AbstractEventLoop | None,
        cancelled: threading.Event,
    ) -> Session:
        """Assemble ``world`` again after its last generation; for the package's own use."""
        new = self._list(world)
        try:
            return self._assemble(config, world.source, loop, True, world.generation, cancelled)
        except BaseException:
            if new:
                self.forget(world)
            raise

    def lists(self, world: World) -> bool:
        """Whether ``world`` is one of ours, and not left; under the lock; for the package's own use."""
        return not self._closed and self._worlds.get(world.name) is world

    def _list(self, world: World) -> bool:
        """Take a world that comes back into the list; whether it had been left."""
        self._check_usable(world.name)
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

    def _assemble(
        self,
        config: WorldConfig,
        source: StoreSource,
        loop: asyncio.AbstractEventLoop | None,
        resize: bool,
        after: int,
        cancelled: threading.Event,
    ) -> Session:
        def work() -> Session:
            return assemble(
                self._hub, self._bus, config, source,
                loop=loop, resize=resize, after=after, cancelled=lambda: cancelled.is_set() or self._closed,
            )  # fmt: skip

        try:
            # In a thread of its own: a store whose host is frozen blocks far beyond every timeout it was given.
            seconds = config.join_timeout + STORE_GRACE_SECONDS
            return within(seconds, work, f"mw-meet-{config.name}", lambda session: session.leave(0.0))
        except TimeoutError:
            cancelled.set()
            raise store_silent(config, source.where, after) from None
        except BaseException:
            cancelled.set()
            raise

    def forget(self, world: World) -> None:
        """Drop a world that was left; for the package's own use."""
        with self.lock:
            if self._worlds.get(world.name) is world:
                del self._worlds[world.name]

    def shut(self, linger: float = LINGER_SECONDS) -> None:
        """Close in this thread, waiting ``linger`` seconds per world for what was sent; for the package's own use."""
        with self.lock:
            if self._closed or os.getpid() != self._pid:
                return
            self._closed = True
            worlds = list(self._worlds.values())
        for world in worlds:
            world.leave_within(linger)
        until = time.monotonic() + min(linger, FREEING_SECONDS)
        for world in worlds:  # what broke shortly before is freed in the background
            world.enter_any().freed.wait(max(0.0, until - time.monotonic()))
        self._stores.close()
        self._hub.release()

    def waiting_threads(self) -> set[int]:
        """Idents of the threads that wait for an operation; for the package's own use."""
        return {ident for world in tuple(self._worlds.values()) for ident in world.enter_any().bridge.waiting_threads()}

    def drop_in_child(self) -> None:
        """Close our copies of everything in a forked child; for the package's own use."""
        for world in self._worlds.values():
            drop_in_child(world.enter_any())
        self._stores.drop_in_child()
        self._hub.drop_in_child()

    def _reserve(self, config: WorldConfig) -> None:
        self._check_usable(config.name)
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

    def _check_usable(self, name: str | None) -> None:
        if os.getpid() != self._pid:
            raise WrongContext(name, "MultiWorld used in a forked child of the process that made it")
        if self._closed:
            raise WrongContext(
                name, "MultiWorld is closed", cause="close() was called, or its block was left", remedy="make a new one"
            )
