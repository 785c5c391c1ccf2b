"""Stores: where members find each other. Hosted here or elsewhere, in a file, or the caller's own."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import torch.distributed as dist

from multiworld.config import FileStorePath, TcpStoreAddress, WorldConfig
from multiworld.errors import InvalidArgument, RendezvousError
from multiworld.liveness.pulse import answers
from multiworld.process import immortal
from multiworld.rendezvous.filestore import FileStore

#: clients of one store that are kept for later
MAX_IDLE = 2
#: ``"tcp://host:port"``, ``"file:///path"``, ``"env://"``, an address, a path, or any ``torch.distributed.Store``
StoreLike: TypeAlias = "str | TcpStoreAddress | FileStorePath | Any"


@dataclass(frozen=True)
class StoreSource:
    """A store that can be opened, each time with a client of its own.

    Attributes:
        where: its address, or the caller's store.
        address: the local address that peers of such a store reach us at.
        idle: clients that nobody uses now, shared by all worlds of one store.
    """

    where: TcpStoreAddress | FileStorePath | Any
    address: str
    idle: list[Any] = field(default_factory=list)

    def open(self, timeout: float) -> Any:
        """A client for one thread, a kept one if it still works; ``timeout`` in seconds bounds its waits."""
        while self.idle:
            client = self.idle.pop()
            with contextlib.suppress(RuntimeError):  # its host is gone, maybe another is there by now
                client.num_keys()
                return client
        if isinstance(self.where, TcpStoreAddress):
            return dist.TCPStore(
                self.where.host, self.where.port, None, False, timedelta(seconds=max(timeout, 0.1)), False
            )
        if isinstance(self.where, FileStorePath):
            # Tried first: where it cannot open its file, the store's constructor goes on trying, and holds the GIL.
            _open_file(self.where.path, timeout)
            return FileStore(self.where.path, -1)
        return self.where

    def give_back(self, client: Any) -> None:
        """Keep a TCP client for the next generation: connecting anew takes longer than all the rest of a rejoin."""
        if isinstance(self.where, TcpStoreAddress) and len(self.idle) < MAX_IDLE:
            self.idle.append(client)


class StoreBook:
    """The stores that this process hosts; one per address, for all its worlds and their generations."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._hosted: dict[tuple[str, int], Any] = {}
        self._idle: dict[str, list[Any]] = {}

    def serve(self, host: str, port: int) -> TcpStoreAddress:
        """Host a store at ``host``:``port``, bound there only; the address with the real port.

        Raises:
            RendezvousError: the address is in use or not ours.
        """
        if not isinstance(host, str) or not isinstance(port, int) or not 0 <= port <= 65535:
            raise InvalidArgument(
                what=f"no store can be hosted at {host!r}, port {port!r}",
                remedy="pass a local address as text and a port from 0 to 65535; 0 takes a free one",
                operation="serve_store",
            )
        with self._guard:
            if (host, port) in self._hosted:
                return TcpStoreAddress(host, port, hosted=False)
            try:
                listener = _bound(host, port)
            except OSError as error:
                raise _not_hosted(host, port, error) from None
            real = listener.getsockname()[1]
            self._hosted[host, real] = _served(host, real, listener)
            return TcpStoreAddress(host, real, hosted=False)

    def source(self, store: StoreLike, config: WorldConfig) -> StoreSource:
        """What ``store`` means for this membership; hosts it where that is our part."""
        where = _parsed(store, config)
        if isinstance(where, TcpStoreAddress):
            try:
                address = config.address or _local_address(where.host, where.port)
            except OSError as error:
                raise RendezvousError(
                    config.name, f"the store {where} cannot be reached: {error.strerror or error}",
                    cause="the host's name is not known here, or there is no way to it", rank=config.rank,
                    operation="join",
                ) from None  # fmt: skip
            self._host_if_ours(where, config)
            return StoreSource(where, address, self._idle.setdefault(str(where), []))
        return StoreSource(where, config.address or "127.0.0.1")

    def close(self) -> None:
        """Stop hosting."""
        with self._guard:
            self._hosted.clear()
            self._idle.clear()

    def drop_in_child(self) -> None:
        """Leave the hosted stores alone in a forked child, where their threads do not exist."""
        for hosted in self._hosted.values():
            immortal(hosted)

    def _host_if_ours(self, where: TcpStoreAddress, config: WorldConfig) -> None:
        ours = config.rank == 0 if where.hosted is None else where.hosted
        if not ours or (where.host, where.port) in self._hosted:
            return
        try:
            self.serve(where.host, where.port)
        except RendezvousError:
            # In use or not a local address: a store may be there already, as torchrun's agent's is.
            if where.hosted or not answers(where.host, where.port):
                raise


def _parsed(store: StoreLike, config: WorldConfig) -> TcpStoreAddress | FileStorePath | Any:
    if isinstance(store, TcpStoreAddress) and not 0 < store.port <= 65535:
        raise _no_store(config, store)
    if isinstance(store, (TcpStoreAddress, FileStorePath)) or hasattr(store, "compare_set"):
        return store
    if not isinstance(store, str):
        raise _no_store(config, store)
    if store == "env://":
        return _from_environment(config)
    parts = urlsplit(store)
    try:
        if parts.scheme == "tcp" and parts.hostname and parts.port:
            return TcpStoreAddress(parts.hostname, parts.port)
    except ValueError:
        pass  # no number for a port: refused below
    if parts.scheme == "file" and parts.path:
        return FileStorePath(parts.path)
    raise _no_store(config, store)


def _no_store(config: WorldConfig, store: object) -> InvalidArgument:
    return InvalidArgument(
        config.name,
        f"{store!r} is no store",
        cause="known are tcp://host:port, file:///path, env:// and the stores of torch.distributed",
        remedy="correct it; for port 0 call serve_store() and pass on the address it returns",
        rank=config.rank,
        operation="join",
    )


def _from_environment(config: WorldConfig) -> TcpStoreAddress:
    try:
        return TcpStoreAddress(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
    except (KeyError, ValueError):
        raise InvalidArgument(
            config.name,
            "store='env://' needs MASTER_ADDR and MASTER_PORT",
            remedy="launch with torchrun, set them, or pass store=",
            rank=config.rank,
            operation="join",
        ) from None


def _bound(host: str, port: int) -> socket.socket:
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server((str(address[0]), port), family=family, backlog=4096)


def _served(host: str, port: int, listener: socket.socket) -> Any:
    # The listening socket is ours and bound to one address: the store itself would take every interface. The native
    # thread that is not libuv's takes it on every release.
    return dist.TCPStore(
        host, port, None, True, timedelta(seconds=30), False, master_listen_fd=listener.detach(), use_libuv=False
    )


def _not_hosted(host: str, port: int, error: OSError) -> RendezvousError:
    cause = (
        "another program listens there" if error.errno == errno.EADDRINUSE else "the address is not one of this machine"
    )
    return RendezvousError(
        None,
        f"no store can be hosted at {host}:{port}: {error.strerror or error}",
        cause=cause,
        remedy="choose another port, or port 0 with serve_store(); or host the store elsewhere and pass its address",
        operation="serve_store",
    )


def _local_address(host: str, port: int) -> str:
    """Our address on the way to ``host``; no packet is sent."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def _open_file(path: str, timeout: float) -> None:
    """Make the file of a store, or see that it is there, once its folder is, on a file system that may lag behind.

    Raises:
        OSError: it cannot be opened, or its folder does not come within ``timeout`` seconds.
    """
    until = time.monotonic() + timeout
    while not Path(path).parent.is_dir() and time.monotonic() < until:
        time.sleep(0.05)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))
