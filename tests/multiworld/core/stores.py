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
from multiworld.store.client import Deadline, StoreClient, _key
from multiworld.store.server import StoreServer
from multiworld.store.server_data import Limits
from multiworld.store.wire import COUNT, NUMBER, READY, Request, request, sized

SOON = 5.0
SECRET = b"correct horse battery staple"


class MoreOfAClient(StoreClient):
    """A client with what torch's clients ask a store for, and a ledger does not."""

    def compare_set(self, key: str, expected: str, desired: str) -> bytes:
        return self.compare_sets([(key, expected, desired)])[0]

    def delete_key(self, key: str) -> bool:
        return self.delete_keys([key])[0]

    def set(self, key: str, value: str) -> None:
        """Write a value; returns before the store has it, later calls come after it."""
        with self._failing():
            self._call(request(Request.SET, _key(key), sized(value.encode())))

    def get(self, key: str) -> bytes | None:
        """The value, None if there is none; does not wait for one, unlike torch's."""
        if not self.check([key]):
            return None
        return self._asked([request(Request.GET, _key(key))], self._sized)[0]

    def add(self, key: str, amount: int) -> int:
        return self._asked([request(Request.ADD, _key(key), NUMBER.pack(amount))], self._number)[0]

    def check(self, keys: list[str]) -> bool:
        asked = request(Request.CHECK, COUNT.pack(len(keys)), *map(_key, keys))
        return self._asked([asked], lambda: self._take(1))[0] == READY


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
