"""Stores in this process, ours and torch's."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from datetime import timedelta

import torch.distributed as dist

from multiworld.config import TcpStoreAddress
from multiworld.process.hub import Hub
from multiworld.store.client import Deadline
from multiworld.store.server import StoreServer
from multiworld.store.server_data import Limits

SOON = 5.0
SECRET = b"correct horse battery staple"


def deadline(seconds: float = SOON) -> Deadline:
    return Deadline(time.monotonic() + seconds)


@contextlib.contextmanager
def served(secret: bytes | None = None, limits: Limits | None = None) -> Iterator[tuple[TcpStoreAddress, StoreServer]]:
    """A store of ours in this process."""
    hub = Hub.acquire()
    listener = socket.create_server(("127.0.0.1", 0))
    where = TcpStoreAddress("127.0.0.1", listener.getsockname()[1])
    server = StoreServer(hub, listener, secret, limits)
    try:
        yield where, server
    finally:
        server.close()
        hub.release()


@contextlib.contextmanager
def torchs(use_libuv: bool) -> Iterator[TcpStoreAddress]:
    """A store of torch's in this process."""
    hosted = dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=30), False, use_libuv=use_libuv)
    yield TcpStoreAddress("127.0.0.1", hosted.port)
    del hosted
