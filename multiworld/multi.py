"""``MultiWorld``: all worlds of a process, the one way in."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING

import torch

from multiworld.callbacks import Callbacks
from multiworld.config import (
    DEFAULT_JOIN_TIMEOUT,
    DEFAULT_OP_TIMEOUT,
    Heartbeat,
    NetworkSettings,
    TcpStoreAddress,
    WorldConfig,
    is_duration,
)
from multiworld.errors import DescriptorsExhausted, InvalidArgument, WrongContext
from multiworld.events import Event, EventBus
from multiworld.hub import Hub
from multiworld.loops import running_loop
from multiworld.net.descriptors import descriptor_shortage, limit
from multiworld.net.interfaces import chosen_address
from multiworld.net.settings import network_settings
from multiworld.process import register
from multiworld.remains import FREEING_SECONDS, TELLING_SECONDS, Remains
from multiworld.rendezvous.joining import STORE_GRACE_SECONDS, assemble, store_silent
from multiworld.rendezvous.settings import check_resize, checked_config
from multiworld.rendezvous.stores import StoreBook, StoreLike, StoreSource
from multiworld.session import LINGER_SECONDS
from multiworld.threads import run_in_thread, within
from multiworld.world import World

if TYPE_CHECKING:
    from typing_extensions import Self

    from multiworld.session import Session


@dataclass(frozen=True, slots=True)
class Defaults:
    """What ``join`` uses where it is not told otherwise; fields as in ``WorldConfig``."""

    address: str | None
    op_timeout: float
    heartbeat: Heartbeat
    network: NetworkSettings


class Attempt:
    """One call of ``join``: whether its caller has given up, and the world once it is in; both under the owner's
    lock."""

    def __init__(self) -> None:
        self.cancelled = threading.Event()
        self.world: World | None = None


#: how long ``close`` waits for joins under way to give up, beyond what it waits for what was sent
GIVING_UP_SECONDS = 0.5


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
        return self._owner.admit(replace(config, network=defaults.network), store, resize, None, Attempt())

    def close(self) -> None:
        """``close``, waiting in this thread."""
        self._owner.shut()


class MultiWorld:
    """The worlds of this process.

    Args:
        address: local address that peers reach us at; None: of ``interfaces``, or derived from each world's store.
        op_timeout: default deadline of operations, in seconds.
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
        #: what worlds there are, and which generation of each is the live one
        self.lock = threading.Lock()
        #: attempts to join or rejoin that are under way; changes are told
        self._attempts = 0
        self._attempted = threading.Condition(self.lock)
        self._worlds: dict[str, World] = {}
        self._joining: set[str] = set()
        self._pid = os.getpid()
        try:
            self._hub = Hub.acquire()
        except OSError as error:
            raise DescriptorsExhausted(
                what=f"a MultiWorld cannot be made: {descriptor_shortage(error) or error}", limit=limit(), need=2
            ) from error
        self._stores = StoreBook(self._hub, network)
        #: set once closed; what runs elsewhere looks at this and not at us, so that it does not keep us alive
        self._end = threading.Event()
        register(self)

    @property
    def sync(self) -> SyncMultiWorld:
        """The synchronous twins of ``join`` and ``close``."""
        return SyncMultiWorld(self)

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
                ``torch.distributed.Store``; of a ``TCPStore`` its address is used, with a connection of our own. A
                store that torch hosts, such as torchrun's, knows no secret: whoever hosts it has to protect it.
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
        loop = running_loop("join", name)
        try:
            config = replace(config, network=defaults.network)
            return await run_in_thread(f"mw-join-{name}", self.admit, config, store, resize, loop, attempt)
        except asyncio.CancelledError:
            with self.lock:
                attempt.cancelled.set()
            if attempt.world is not None:  # it was in already, and the caller never got it; nothing in it blocks yet
                attempt.world.leave_within(0.0)
            raise

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
        self._check_usable(None)
        return self._stores.serve(host, port)

    def events(self) -> AsyncIterator[Event]:
        """What happens to the worlds from this call on, for the running event loop.

        Raises:
            WrongContext: no asyncio loop runs; under trio use ``subscribe``.
        """
        return self._bus.stream()

    def subscribe(self, callback: Callable[[Event], None]) -> Callable[[], None]:
        """Call ``callback`` for each event from now on; returns what ends that.

        Callbacks run in a thread of their own, one after the other in the order of the events. They may block and call
        anything, such as ``w.sync.rejoin()``; events that happen meanwhile are told afterwards. ``join`` and ``rejoin``
        return when their ``WorldJoined`` was told, unless callbacks take longer than a second.

        Args:
            callback: called with the event; what it raises is logged.
        """
        self._check_usable(None)
        if not callable(callback):
            raise InvalidArgument(what=f"callback is {callback!r}", remedy="pass a function of one event")
        return self._callbacks.subscribe(callback)

    async def close(self) -> None:
        """Leave every world in good order and free everything; nothing is left behind, and the process goes on."""
        running_loop("close")
        await run_in_thread("mw-close", self.shut)

    async def __aenter__(self) -> Self:
        running_loop("async with")  # now, and not when the block ends and nothing could be closed
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
            unwanted = attempt.cancelled
            source = self._stores.source(store, config, lambda: unwanted.is_set() or self._end.is_set())
            session = self._assemble(config, source, loop, resize, 0, attempt.cancelled)
            world = World(self, config, session, source, loop)
            with self.lock:
                if not self._end.is_set() and not attempt.cancelled.is_set():
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
        return not self._end.is_set() and self._worlds.get(world.name) is world

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

    @contextlib.contextmanager
    def _attempting(self, name: str) -> Iterator[None]:
        """An attempt is under way, which ``close`` waits for; none begins once we are closed."""
        with self.lock:
            self._attempts += 1
        try:
            self._check_usable(name)
            yield
        finally:
            with self.lock:
                self._attempts -= 1
                self._attempted.notify_all()

    def _assemble(
        self,
        config: WorldConfig,
        source: StoreSource,
        loop: asyncio.AbstractEventLoop | None,
        resize: bool,
        after: int,
        cancelled: threading.Event,
    ) -> Session:
        hub, bus, end = self._hub, self._bus, self._end  # not us: peers' questions are answered with `given_up`

        def given_up() -> bool:
            return cancelled.is_set() or end.is_set()

        def work() -> Session:
            return assemble(hub, bus, config, source, loop=loop, resize=resize, after=after, cancelled=given_up)

        try:
            # In a thread of its own: a store whose host is frozen blocks far beyond every timeout it was given.
            seconds = config.join_timeout + STORE_GRACE_SECONDS
            with self._attempting(config.name):
                session = within(seconds, work, f"mw-meet-{config.name}", lambda session: session.leave(0.0))
        except TimeoutError:
            cancelled.set()
            raise store_silent(config, source.where, after) from None
        except BaseException:
            cancelled.set()
            raise
        self._callbacks.flush(TELLING_SECONDS)
        return session

    def forget(self, world: World) -> None:
        """Drop a world that was left; for the package's own use."""
        with self.lock:
            if self._worlds.get(world.name) is world:
                del self._worlds[world.name]

    def shut(self, linger: float = LINGER_SECONDS) -> None:
        """Close in this thread, waiting ``linger`` seconds per world for what was sent; for the package's own use."""
        with self.lock:
            if self._end.is_set() or os.getpid() != self._pid:
                return
            self._end.set()
            # They give up now, and need the hub until they have.
            self._attempted.wait_for(lambda: not self._attempts, min(FREEING_SECONDS, linger + GIVING_UP_SECONDS))
            worlds = list(self._worlds.values())
        for world in worlds:
            world.leave_within(linger)
        self._remains([world.enter_any() for world in worlds]).free(min(linger, FREEING_SECONDS))

    def __del__(self) -> None:
        """Leave what was not closed, so that peers see it end.

        The collector calls this in any thread and in the middle of anything: nothing here blocks, and the hub starts a
        thread for the rest.
        """
        end = getattr(self, "_end", None)
        if end is None or end.is_set() or os.getpid() != self._pid:
            return
        end.set()
        sessions = [world.enter_any() for world in self._worlds.values()]
        self._hub.call(self._remains(sessions).start)
        names = ", ".join(session.name for session in sessions) or "none"
        warnings.warn(
            f"a MultiWorld was dropped without close(); worlds that it leaves now: {names}",
            ResourceWarning, stacklevel=2, source=self,
        )  # fmt: skip

    def _remains(self, sessions: list[Session]) -> Remains:
        return Remains(sessions, self._hub, self._callbacks, self._stores)

    def waiting_threads(self) -> set[int]:
        """Idents of the threads that wait for an operation; for the package's own use."""
        return {ident for world in tuple(self._worlds.values()) for ident in world.enter_any().bridge.waiting_threads()}

    def drop_in_child(self) -> None:
        """Close our copies of everything in a forked child; for the package's own use."""
        for world in self._worlds.values():
            world.enter_any().drop_in_child()
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
        if self._end.is_set():
            raise WrongContext(
                name, "MultiWorld is closed", cause="close() was called, or its block was left", remedy="make a new one"
            )
