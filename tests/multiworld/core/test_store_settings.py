"""Stores through ``MultiWorld``: with a secret, in a range of ports, on chosen interfaces, and torch's own objects."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from datetime import timedelta
from typing import Any

import pytest
import torch.distributed as dist
from procs import wait_until

from multiworld import MultiWorld, RendezvousError, TcpStoreAddress
from multiworld.rendezvous.ledger import Ledger
from multiworld.store.client import Deadline, StoreClient

SOON = 5.0
SECRET = "s3cret"  # noqa: S105 - of this test


@contextlib.contextmanager
def joined(homes: list[MultiWorld], stores: list[Any]) -> Iterator[list[Any]]:
    """A world of all ``homes``, each with its own idea of the store; closed at the end."""
    with ThreadPoolExecutor(len(homes)) as pool:
        calls = [
            pool.submit(home.sync.join, "w", rank, len(homes), store=store, join_timeout=15)
            for rank, (home, store) in enumerate(zip(homes, stores, strict=True))
        ]
        yield [call.result(30) for call in calls]
        for home in homes:
            home.sync.close()


def test_members_with_the_secret_meet_at_a_served_store() -> None:
    homes = [MultiWorld(secret=SECRET) for _ in range(2)]
    store = homes[0].serve_store()
    with joined(homes, [store, str(store)]) as worlds:
        assert [world.generation for world in worlds] == [1, 1]


@pytest.mark.parametrize(("mine", "words"), [(None, "has a secret, this process has none"), ("other", "has another")])
def test_without_the_secret_a_join_fails_at_once(
    mine: str | None, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    with MultiWorld(secret=SECRET) as host, MultiWorld(secret=mine) as guest, caplog.at_level(logging.WARNING):
        store = host.serve_store()
        started = time.monotonic()
        for _ in range(3):
            with pytest.raises(RendezvousError, match=words) as caught:
                guest.sync.join("w", 1, 2, store=store, join_timeout=30)
        assert time.monotonic() - started < SOON
    assert "secret" in str(caught.value.remedy)
    assert SECRET not in str(caught.value) + caplog.text
    assert len([r for r in caplog.records if "the store at port" in r.getMessage()]) == 1, "told once, not each time"


@pytest.mark.parametrize(
    ("hosts", "guests", "words"),
    [
        (SECRET, None, "has no secret, this process has one"),
        (None, SECRET, "has a secret, this process has none"),
        (SECRET, "other", "has another secret"),
    ],
)
def test_a_host_whose_guests_were_refused_says_so_when_they_do_not_come(
    hosts: str | None, guests: str | None, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    with MultiWorld(secret=hosts) as host, MultiWorld(secret=guests) as guest, ThreadPoolExecutor(1) as pool:
        store = host.serve_store()
        with caplog.at_level(logging.WARNING), pytest.raises(RendezvousError) as refused:
            guest.sync.join("early", 1, 2, store=store, join_timeout=30)
        with pytest.raises(RendezvousError) as alone:  # that was before, and tells nothing about this join
            host.sync.join("w", 0, 2, store=store, join_timeout=0.2)
        waiting = pool.submit(host.sync.join, "w", 0, 2, store=store, join_timeout=4.0)
        while not wait([waiting], 0.1).done:
            with contextlib.suppress(RendezvousError):
                guest.sync.join("w", 1, 2, store=store, join_timeout=30)
        with pytest.raises(RendezvousError, match=words) as caught:
            waiting.result()
    assert "secret" not in str(alone.value)
    assert refused.value.__cause__ is None, "a chain of inner errors is no help for a wrong setting"
    for text in (caught.value.remedy, caplog.text):
        assert "give all members the same secret" in text


@pytest.mark.parametrize("goes", [True, False], ids=["the store goes", "the store stays"])
def test_who_waits_is_told_of_another_size(goes: bool, caplog: pytest.LogCaptureFixture) -> None:
    """Who is refused may host the store, and end with it."""
    with MultiWorld() as waits, MultiWorld() as host, ThreadPoolExecutor(1) as pool:
        store = host.serve_store()
        waiting = pool.submit(waits.sync.join, "w", 1, 3, store=store, join_timeout=2.0)
        ledger = Ledger(StoreClient.connect(store, Deadline(time.monotonic() + SOON)), "w")
        wait_until(lambda: ledger.claimed(1, 1) is not None, SOON, "it does not come")
        with pytest.raises(RendezvousError, match="has size 3 in generation 1, not 2"):
            host.sync.join("w", 0, 2, store=store, join_timeout=30)
        assert "it joins as rank 0 of 2, not of 3; likely cause: size=" in caplog.text
        if goes:
            host.sync.close()
        words = "the store .* (cannot be reached|hung up)" if goes else "rank 0, 2 has not joined"
        with pytest.raises(RendezvousError, match=f"{words}.* joins as rank 0 of 2, not of 3") as caught:
            waiting.result()
    assert "size=" in caught.value.cause


def test_members_with_a_secret_meet_at_a_store_of_torchs(tcp_store: str) -> None:
    homes = [MultiWorld(secret=SECRET) for _ in range(2)]
    host, _, port = tcp_store.removeprefix("tcp://").rpartition(":")
    with joined(homes, [TcpStoreAddress(host, int(port), hosted=False)] * 2) as worlds:
        assert [world.generation for world in worlds] == [1, 1]


def test_torchs_own_client_is_used_by_its_address(tcp_store: str) -> None:
    """Another thread is inside of a call of that object all the time, which its lock would make us wait for."""
    host, _, port = tcp_store.removeprefix("tcp://").rpartition(":")
    own = [dist.TCPStore(host, int(port), None, False, timedelta(seconds=3)) for _ in range(2)]
    busy = [threading.Thread(target=_wait, args=(each,), daemon=True) for each in own]
    for thread in busy:
        thread.start()
    started = time.monotonic()
    with joined([MultiWorld() for _ in own], list(own)) as worlds:
        assert time.monotonic() - started < 3.0
        assert all(thread.is_alive() for thread in busy)
        assert [world.generation for world in worlds] == [1, 1]
    for thread in busy:
        thread.join(10)


def _wait(store: Any) -> None:
    with contextlib.suppress(RuntimeError):
        store.wait(["never"], timedelta(seconds=3))


def test_a_served_store_keeps_to_the_ports() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        first = free.getsockname()[1]
    with MultiWorld(ports=range(first, min(first + 30, 65536))) as mw:
        assert first <= mw.serve_store().port < first + 30
    with socket.create_server(("127.0.0.1", 0)) as taken, MultiWorld(ports=str(taken.getsockname()[1])) as mw:
        with pytest.raises(RendezvousError, match="MULTIWORLD_PORTS") as caught:
            mw.serve_store()
        assert caught.value.operation == "serve_store"


def test_interfaces_decide_which_address_is_told() -> None:
    with MultiWorld(interfaces="lo") as mw:
        assert mw.serve_store("0.0.0.0").host == "127.0.0.1"  # noqa: S104


def test_what_a_process_hosts_ends_with_its_multiworld() -> None:
    before = {thread.name for thread in threading.enumerate()}
    mw = MultiWorld()
    store = mw.serve_store()
    with socket.create_connection((store.host, store.port), timeout=SOON) as client:
        mw.sync.close()
        with contextlib.suppress(ConnectionResetError):  # not accepted yet
            assert client.recv(1) == b""
    with socket.create_server((store.host, store.port)):
        pass
    assert {thread.name for thread in threading.enumerate()} <= before


def test_a_store_with_foreign_keys_is_told(tcp_store: str) -> None:
    host, _, port = tcp_store.removeprefix("tcp://").rpartition(":")
    other = dist.TCPStore(host, int(port), None, False, timedelta(seconds=10))
    other.set("multiworld/w/generation", "rubbish")
    with MultiWorld() as mw, pytest.raises(RendezvousError, match="that multiworld did not write"):
        mw.sync.join("w", 0, 1, store=tcp_store, join_timeout=5)
