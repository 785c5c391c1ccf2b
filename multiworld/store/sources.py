"""Stores: where members find each other. Hosted here or elsewhere, in a file, or the caller's own."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import torch.distributed as dist

from multiworld.config import FileStorePath, NetworkSettings, TcpStoreAddress, WorldConfig, printed
from multiworld.errors import InvalidArgument, MultiWorldError, RendezvousError, WrongContext
from multiworld.process.join_threads import JoinThreads
from multiworld.store.addresses import own_address, resolved, usable_address
from multiworld.store.client import Cancelled, Deadline, GreetingMode, StoreClient, StoreFailed
from multiworld.store.server import StoreServer
from multiworld.store.torch_store import FileStore, Gate, TorchStore
from multiworld.transport.descriptors import cause_of, system_message
from multiworld.transport.greeting import GreetingError
from multiworld.transport.network_settings import listen
from multiworld.transport.reactor import Reactor

#: connections to a hosted store that may wait for being accepted: all members of a large world come at once
BACKLOG = 4096
#: how long a store may take to show that it is there already, in seconds
ANSWER_SECONDS = 2.0
#: ``"tcp://host:port"``, ``"file:///path"``, ``"env://"``, an address, a path, or any ``torch.distributed.Store``
StoreLike: TypeAlias = "str | TcpStoreAddress | FileStorePath | Any"


class ThreadClients(threading.local):
    """Clients of one TCP store, one for each thread, as long as it lives: a thread of joins serves many, and each of
    them looks at the store again and again."""

    def __init__(self, mode: GreetingMode) -> None:
        self._mode = mode
        self._client: StoreClient | None = None

    def get(self, where: TcpStoreAddress, deadline: Deadline) -> StoreClient:
        """That of this thread if it still works, or a new one; raises as ``StoreClient.connect``."""
        if self._client is None or self._client.ended:
            self._client = None  # closed first, if the store has few descriptors
            self._client = StoreClient.connect(where, deadline, self._mode)
        self._client.deadline = deadline
        return self._client


@dataclass(frozen=True)
class StoreSource:
    """A store that can be opened.

    Attributes:
        address: the local address that peers of such a store reach us at.
        clients: of a TCP store, shared by all its worlds.
        owner: what has to live as long as the store is used, such as the caller's object.
        complaint: why a store that is hosted here refused a client since a monotonic time; None if it did not.
    """

    where: TcpStoreAddress | FileStorePath | Any
    address: str
    clients: ThreadClients | None = None
    owner: Any = None
    gate: Gate = field(default_factory=Gate)
    complaint: Callable[[float], GreetingError | None] = lambda _: None

    def open(self, deadline: Deadline) -> Any:
        """A client for this thread, that of a TCP store also for its next joins; ``deadline`` bounds its waits.

        Raises:
            StoreFailed: a TCP store does not answer in time.
            Cancelled: the caller has stopped waiting.
            OSError: the file of a file store cannot be made.
        """
        if isinstance(self.where, TcpStoreAddress):
            assert self.clients is not None  # noqa: S101 - for the type checker; see ``HostedStores.source``
            return self.clients.get(self.where, deadline)
        if isinstance(self.where, FileStorePath):
            # Tried first: where it cannot open its file, the store's constructor goes on trying, and holds the GIL.
            _open_file(self.where.path, deadline)
            path = self.where.path
            return TorchStore(self.gate, lambda: FileStore(path, -1))
        return TorchStore(self.gate, lambda: self.where)


class HostedStores:
    """The stores that this process hosts; one per address, for all its worlds and their generations."""

    def __init__(self, hub: Reactor, network: NetworkSettings) -> None:
        self._hub = hub
        self._network = network
        self._guard = threading.Lock()
        self._hosted: dict[tuple[str, int], StoreServer] = {}
        self._clients: dict[str, ThreadClients] = {}
        #: by store; they live as long as a join or a world of it refers to them
        self._threads: weakref.WeakValueDictionary[Hashable, JoinThreads] = weakref.WeakValueDictionary()
        self._gate = Gate()
        self._closed = False

    def serve(self, host: str, port: int) -> TcpStoreAddress:
        """Host a store at ``host``:``port``, bound there only; the address that others use, with the real port. Raises
        ``RendezvousError`` if the address is in use or not ours."""
        if not isinstance(host, str) or type(port) is not int or not 0 <= port <= 65535:
            raise InvalidArgument(
                what=f"cannot host a store at {host!r}, port {port!r}",
                remedy="pass a local address as text and a port from 0 to 65535; 0 takes a free one",
                operation="serve_store",
            )
        with self._guard:
            if (host, port) in self._hosted:
                return TcpStoreAddress(usable_address(host, self._network.interfaces), port, hosted=False)
            usable = usable_address(host, self._network.interfaces)
            try:
                listener = listen(host, port, self._network, BACKLOG)
            except MultiWorldError as error:
                raise error.with_context(operation="serve_store") from None
            except OSError as error:
                raise _not_hosted(host, port, error) from None
            real = listener.getsockname()[1]
            self._host(listener, (host, real), (usable, real))
            return TcpStoreAddress(usable, real, hosted=False)

    def threads(self, where: object) -> JoinThreads:
        """The threads in which joins at the store ``where`` advance."""
        key = str(where) if isinstance(where, (TcpStoreAddress, FileStorePath)) else id(where)
        with self._guard:
            return self._threads.setdefault(key, JoinThreads())

    def wake_joins(self) -> None:
        """Let all joins look whether they are still wanted."""
        for reference in self._threads.valuerefs():  # a list, since a join of another thread may add some
            threads = reference()
            if threads is not None:
                threads.wake_all()

    def source(
        self, where: object, store: StoreLike, config: WorldConfig, cancelled: Callable[[], bool]
    ) -> StoreSource:
        """Return the source that ``store`` means for this membership; hosts it where that is our part.

        Raises:
            RendezvousError: its name is not known, there is no route to it, or it cannot be hosted.
        """
        if not isinstance(where, TcpStoreAddress):
            return StoreSource(where, config.address or "127.0.0.1", gate=self._gate)
        deadline = Deadline(time.monotonic() + config.join_timeout, cancelled)
        address = config.address or _address_towards(where, deadline)
        clients = self._clients_of(where, store)
        self._host_if_ours(where, config, deadline, clients)
        return StoreSource(where, address, clients, store, self._gate, lambda since: self.complaint(where, since))

    def reader(self, where: object, store: StoreLike) -> StoreSource:
        """Return the source of a store that is only looked at: nothing is hosted, and no file is made."""
        if isinstance(where, FileStorePath) and not Path(where.path).exists():
            cause = "no world was joined with it yet, or it is on another machine"
            raise RendezvousError(what=f"there is no store {where}", cause=cause, remedy="check the path")
        clients = self._clients_of(where, store) if isinstance(where, TcpStoreAddress) else None
        return StoreSource(where, "", clients, store, self._gate)

    def complaint(self, where: object, since: float) -> GreetingError | None:
        """Why a store that is hosted here refused a client since a monotonic time; None if it did not."""
        server = self._hosted.get((where.host, where.port)) if isinstance(where, TcpStoreAddress) else None
        return None if server is None else server.complaint(since)

    def close(self) -> None:
        """Stop hosting, and hang up; calls of torch's own stores get a moment to come back."""
        with self._guard:
            self._closed = True
            servers = set(self._hosted.values())
            self._hosted.clear()
        for server in servers:
            server.close()
        self._gate.close()

    def _host(self, listener: socket.socket, *places: tuple[str, int]) -> None:
        if self._closed:
            listener.close()
            raise WrongContext(what="MultiWorld is closed", operation="serve_store")
        server = StoreServer(self._hub, listener, self._network.secret)
        self._hosted.update(dict.fromkeys(places, server))

    def _clients_of(self, where: TcpStoreAddress, store: StoreLike) -> ThreadClients:
        """The clients of the store at ``where``; one that torch hosts has no secret."""
        torchs = not isinstance(store, (str, TcpStoreAddress)) or (store == "env://" and _is_torchruns())
        with self._guard:
            mode = GreetingMode(None if torchs else self._network.secret)
            return self._clients.setdefault(str(where), ThreadClients(mode))

    def _host_if_ours(
        self, where: TcpStoreAddress, config: WorldConfig, deadline: Deadline, clients: ThreadClients
    ) -> None:
        ours = config.rank == 0 if where.hosted is None else where.hosted
        if not ours or (where.host, where.port) in self._hosted:
            return
        try:
            self.serve(where.host, where.port)
        except RendezvousError:
            # In use or not a local address: a store may be there already, as torchrun's agent's is.
            if where.hosted or not _answers(where, deadline.at_most(ANSWER_SECONDS), clients):
                raise


def _answers(where: TcpStoreAddress, deadline: Deadline, clients: ThreadClients) -> bool:
    """Return whether a store answers at ``where``, even with a refusal."""
    try:
        clients.get(where, deadline)
    except StoreFailed as failed:
        return failed.lasting  # the join says why
    except Cancelled:
        return False
    return True


def _is_torchruns() -> bool:
    """Return whether torchrun's agent hosts the store of ``env://``; it sets this variable for its workers."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _address_towards(where: TcpStoreAddress, deadline: Deadline) -> str:
    try:
        return own_address(resolved(where.host, where.port, deadline.left)[0])
    except (OSError, Cancelled) as error:
        why, cause, remedy = "the wait was cancelled", "joining was cancelled", None
        if isinstance(error, OSError):
            why, (cause, remedy) = system_message(error), cause_of(error, "there is no route to it")
        what = f"the store {where} cannot be reached: {why}"
        raise RendezvousError(what=what, cause=cause, remedy=remedy) from None


def parsed(store: StoreLike) -> TcpStoreAddress | FileStorePath | Any:
    """The address, the path or the object that ``store`` stands for; raises ``InvalidArgument`` for anything else."""
    given: Any = store
    if type(given) is dist.TCPStore:  # its client waits in C++, and must not be shared by threads: ours does better
        return TcpStoreAddress(given.host, given.port, hosted=False)
    if isinstance(store, TcpStoreAddress) and not 0 < store.port <= 65535:
        raise _no_store(store)
    if isinstance(store, (TcpStoreAddress, FileStorePath)) or hasattr(store, "compare_set"):
        return store
    if not isinstance(store, str):
        raise _no_store(store)
    if store == "env://":
        return _from_environment()
    parts = urlsplit(store)
    try:
        if parts.scheme == "tcp" and parts.hostname and parts.port:
            return TcpStoreAddress(parts.hostname, parts.port)
    except ValueError:
        pass  # no number for a port: refused below
    if parts.scheme == "file" and parts.path:
        return FileStorePath(parts.path)
    raise _no_store(store)


def _no_store(store: object) -> InvalidArgument:
    cause = "known are tcp://host:port, file:///path, env:// and the stores of torch.distributed"
    remedy = "correct it; for port 0 call serve_store() and pass on the address it returns"
    return InvalidArgument(what=f"{store!r} is not a store", cause=cause, remedy=remedy)


def _from_environment() -> TcpStoreAddress:
    try:
        hosted = False if _is_torchruns() else None
        return TcpStoreAddress(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), hosted)
    except (KeyError, ValueError):
        raise InvalidArgument(
            what="store='env://' needs MASTER_ADDR and MASTER_PORT",
            remedy="launch with torchrun, set them, or pass store=",
        ) from None


def _not_hosted(host: str, port: int, error: OSError) -> RendezvousError:
    cause, remedy = cause_of(error, "the address is not one of this machine")
    other_port = "choose another port, or port 0 with serve_store()"
    if error.errno == errno.EADDRINUSE:
        cause, remedy = "another program listens there", other_port
    elif error.errno == errno.EACCES:
        cause, remedy = "ports below 1024 are for privileged processes", other_port
    return RendezvousError(
        what=f"cannot host a store at {printed(host, port) if port else host}: {system_message(error)}",
        cause=cause,
        remedy=remedy or "pass an address of this machine; rank 0 hosts the store unless another process does",
        operation="serve_store",
    )


def _open_file(path: str, deadline: Deadline) -> None:
    """Make the file of a store, or open it, once its folder is there: file systems lag. Raises ``OSError`` if it cannot
    be opened or the folder does not come in time, ``Cancelled`` once the caller has given up."""
    while not Path(path).parent.is_dir() and deadline.left() > 0:
        deadline.sleep(0.05)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))
