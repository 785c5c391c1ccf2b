"""``MultiWorld``: all worlds of a process, the one way in."""

from __future__ import annotations

import warnings
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import asdict
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
)
from multiworld.engine import library
from multiworld.errors import InvalidArgument, MultiWorldError
from multiworld.events import Event
from multiworld.process.event_loop import check_no_loop, running_loop
from multiworld.process.hooks import register
from multiworld.process.threads import run_in_thread, wait_in_loop
from multiworld.rendezvous.join_arguments import Defaults, checked_config
from multiworld.rendezvous.listing import ListedWorld
from multiworld.session.counters import History
from multiworld.store.sources import StoreLike
from multiworld.transport.network_settings import chosen_address, network_settings
from multiworld.worlds.join_call import as_told, join
from multiworld.worlds.status import process_status, world_status
from multiworld.worlds.supervision.supervisor import Supervisor
from multiworld.worlds.supervision.want import Backoff, Want
from multiworld.worlds.twins import twin, waited_here
from multiworld.worlds.world import World
from multiworld.worlds.world_table import Resources, WorldTable

if TYPE_CHECKING:
    from typing_extensions import Self


class MultiWorld:
    """The worlds of this process.

    Args:
        address: local address that peers reach us at; None: of ``interfaces``, or derived from each world's store.
        op_timeout: default deadline of operations, in seconds. An operation that passes it breaks its world, a receive
            that waits for work included: give that one ``timeout=math.inf``, or set ``op_timeout=math.inf`` here.
        heartbeat: default of how silence is noticed.
        secret: text or bytes that every member proves to know before it is let in, the same for all members;
            None reads ``MULTIWORLD_SECRET``; without one, a process that reaches our ports and knows a claim is let in.
        ports: where our listeners may be, such as ``"29600-29699"`` or a range; None reads ``MULTIWORLD_PORTS``;
            without, the kernel chooses.
        interfaces: names or networks such as ``("eth0", "10.0.0.0/8")``, where peers reach us at the first that fits;
            None reads ``MULTIWORLD_INTERFACES``, separated by commas.

    Raises:
        InvalidArgument: a value that cannot be right, or no interface fits.
        BackendUnavailable: this installation has no compiled engine.
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
        library.module()  # else told before anything begins
        if address is None and network.interfaces:
            address = chosen_address(network.interfaces)
        self.defaults = Defaults(address, op_timeout, Heartbeat() if heartbeat is None else heartbeat, network)
        self._table: WorldTable[World] = WorldTable(Resources(network))
        register(self._table)

    @property
    def sync(self) -> SyncMultiWorld:
        """The synchronous twins of ``join``, ``list`` and ``close``."""
        return SyncMultiWorld(self, self._table)

    @property
    def worlds(self) -> Mapping[str, World]:
        """The worlds joined and not left yet, by name; broken ones included."""
        return self._table.worlds

    @property
    def history(self) -> History:
        """Counts of the events of the worlds so far: ``Metrics`` and ``StatusFile`` read it."""
        return self._table.resources.history

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
        grow: bool = False,
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
                store that torch hosts, such as torchrun's, knows no secret: its host has to protect it.
            backend: ``"gloo"``, or ``"nccl"`` or ``"torch-nccl"`` for tensors on CUDA devices.
            device: device of the tensors; None is the CPU for Gloo, the current CUDA device for NCCL.
            op_timeout: seconds each operation may take; None is the default of this ``MultiWorld``.
            heartbeat: how silence is noticed; None is the default of this ``MultiWorld``.
            join_timeout: seconds until ``RendezvousError``.
            address: local address that peers reach us at; None: derived from the store's.
            resize: True to wait until the members of an existing world of another size rejoin with ours.
            grow: True to come in addition, without ``rank`` and ``size``: wait until the members of an existing world
                take us in, see ``World.grow``.
            on_cancel: meaning of a cancelled collective of ours. ``"break"`` breaks the world: all members get a
                ``PeerLost`` whose ``how`` is ``"cancelled"``. ``"finish"`` lets it go on without its caller, who then
                must not repeat it: the others would take the repetition for the next one.
            max_message_bytes: longest message whose length the sender decides (``recv_tensor``, objects), in bytes, its
                shape included; a longer one is refused with ``TensorMismatch``.

        Raises:
            RendezvousError: duplicate rank, other size, members that did not come, store not reachable; with ``grow``,
                another torch than that of the members.
            StaleGeneration: the members have taken us in and gone on without us.
            InvalidArgument: arguments that cannot be right, or a world of this name joined here already.
            BackendUnavailable: unknown backend, or NCCL without CUDA.
            BackendFailed: the environment is set otherwise than the backend needs it.
        """
        rest = op_timeout, join_timeout, heartbeat, resize, on_cancel, max_message_bytes, grow
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
            Its address with the real port, to be given to ``join`` here and on other members. The store lives until
            ``close``, or until nothing refers to this ``MultiWorld`` any more.

        Raises:
            RendezvousError: the address or port is in use or not ours.
            InvalidArgument: an address that cannot be right, or no interface fits.
        """
        self._table.check_usable(None)
        return self._table.resources.stores.serve(host, port)

    def maintain(self, table: Mapping[str, Want], *, backoff: Backoff | None = None) -> Supervisor:
        """Keep the worlds of ``table``: join them in the background, and bring them back when the program allows it.

        A world changes under the running program only where an error was raised, and at ``reconcile()`` of the
        supervisor. In the main thread, SIGTERM drains it: see there. The supervisor keeps this ``MultiWorld`` alive
        until one of them is closed.

        Args:
            table: by name, what is wanted.
            backoff: the patience with worlds that fail.

        Raises:
            InvalidArgument: an entry cannot be right, or its world is kept or joined in this process already.
            BackendUnavailable, BackendFailed: as of ``join``.
        """
        self._table.check_usable(None)
        return Supervisor(self, self._table, self.defaults, table, backoff)

    async def list(self, store: StoreLike, *, timeout: float = 10.0) -> tuple[ListedWorld, ...]:
        """Read which worlds a store has, by name; changes nothing, and joins nothing.

        Args:
            store: as for ``join``; it is never hosted here.
            timeout: seconds until ``RendezvousError``.

        Raises:
            RendezvousError: the store does not answer in time, or there is none.
            InvalidArgument: arguments that cannot be right.
        """
        try:
            return await self._list(store, timeout)
        except MultiWorldError as error:
            raise error.without_frames() from error.__cause__  # the caller's line says where

    def status(self) -> dict[str, Any]:
        """Describe this process and its worlds for routers and probes, as data for JSON.

        ``ready`` is True if each world, joined or to be kept, is active with all its members.
        """
        table = self._table
        joined = [world_status(world) for world in tuple(table.worlds.values()) if world.name not in table.wanted]
        kept = [tell() for tell in tuple(table.wanted.values())]
        return asdict(process_status([*joined, *kept], self.history))

    def events(self) -> AsyncIterator[Event]:
        """Iterate over the events of the worlds from this call on, in the running event loop.

        Raises:
            WrongContext: no asyncio loop runs; under trio use ``subscribe``.
        """
        return self._table.resources.bus.stream(running_loop)

    def subscribe(self, callback: Callable[[Event], None]) -> Callable[[], None]:
        """Call ``callback`` for each event from now on; returns what ends that.

        Callbacks run in a thread of their own, one after the other in the order of the events. They may block and call
        anything, such as ``w.sync.rejoin()``; events that happen meanwhile are told afterwards. ``join`` and ``rejoin``
        return when their ``WorldJoined`` was told, unless callbacks take longer than a second.

        Args:
            callback: called with the event; what it raises is logged.
        """
        self._table.check_usable(None)
        if not callable(callback):
            raise InvalidArgument(what=f"callback is {callback!r}", remedy="pass a function of one event")
        return self._table.resources.callbacks.subscribe(callback)

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
        self._table.close()

    async def _close(self) -> None:
        running_loop("close")
        await run_in_thread("mw-close", self._table.close)

    async def _list(self, store: StoreLike, timeout: float) -> tuple[ListedWorld, ...]:
        running_loop("list")
        return await run_in_thread("mw-list", self._table.listed, store, timeout)

    async def _join(self, config: WorldConfig, store: StoreLike, resize: bool) -> World:
        loop = running_loop("join", config.name)
        return await join(self, self._table, config, store, loop, as_told(config, resize), wait_in_loop)

    def __del__(self) -> None:
        """Leave what was not closed, so that peers see it end.

        The collector calls this in any thread and in the middle of anything: nothing here blocks, and the hub starts a
        thread for the rest.
        """
        table = getattr(self, "_table", None)  # none if it was never made whole
        sessions = None if table is None else table.drop()
        if sessions is None:
            return
        names = ", ".join(session.name for session in sessions) or "none"
        warnings.warn(
            f"a MultiWorld was dropped without close(); it leaves its worlds now ({names}), and ends its stores",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )


class SyncMultiWorld:
    """Synchronous twins of ``join``, ``list`` and ``close``: ``mw.sync.join(...)``."""

    join = twin(MultiWorld.join)
    list = twin(MultiWorld.list)
    close = twin(MultiWorld.close)

    def __init__(self, owner: MultiWorld, table: WorldTable[World]) -> None:
        self.defaults = owner.defaults
        self._owner = owner
        self._table = table

    async def _join(self, config: WorldConfig, store: StoreLike, resize: bool) -> World:
        check_no_loop("join", config.name, config.rank, of="mw")
        return await join(self._owner, self._table, config, store, None, as_told(config, resize), waited_here)

    async def _close(self) -> None:
        check_no_loop("close", of="mw")
        self._table.close()

    async def _list(self, store: StoreLike, timeout: float) -> tuple[ListedWorld, ...]:
        check_no_loop("list", of="mw")
        return self._table.listed(store, timeout)
