"""A store with a secret: who knows it is served, others are told so at once."""

from __future__ import annotations

import time
from datetime import timedelta

import procs
import pytest
import torch.distributed as dist

from multiworld.lab.context import Context
from multiworld.store.client import GreetingMode, StoreFailed
from tests.multiworld.core.stores import SECRET, SOON, MoreOfAClient, deadline, served, torchs

_WRONG = b"battery horse staple wrong"


def test_clients_with_the_secret_are_served() -> None:
    with served(SECRET) as (where, _):
        mode = GreetingMode(SECRET)
        client = MoreOfAClient.connect(where, deadline(), mode)
        assert client.add("n", 1) == 1
        assert mode.greets is True
        client.close()


@pytest.mark.parametrize(
    ("hosts", "mine", "words"),
    [
        (SECRET, None, "has a secret, this process has none"),
        (SECRET, _WRONG, "has another secret"),
        (None, SECRET, "has no secret"),
    ],
)
def test_secrets_that_differ_are_told_at_once(hosts: bytes | None, mine: bytes | None, words: str) -> None:
    started = time.monotonic()
    with served(hosts) as (where, server), pytest.raises(StoreFailed, match=words) as caught:
        MoreOfAClient.connect(where, deadline(30), GreetingMode(mine))
    assert time.monotonic() - started < SOON
    assert caught.value.remedy
    for secret in (SECRET, _WRONG):
        assert secret.decode() not in f"{caught.value!r} {caught.value} {caught.value.remedy}"
    assert len(server.data) == 0


@pytest.mark.parametrize("keys", [ord("{"), ord("{") + 256])
def test_a_number_of_keys_that_begins_as_a_refusal_is_a_number(keys: int) -> None:
    with served(None) as (where, server):
        for number in range(keys):
            server.data.set(b"%d" % number, b"")
        client = MoreOfAClient.connect(where, deadline(), GreetingMode())
        assert client.num_keys() == keys
        client.close()


def torch_connects(context: Context, host: str, port: int) -> str:
    try:
        store = dist.TCPStore(host, port, None, False, timedelta(seconds=1))
        store.set("key", "value")  # on torch 2.2 neither this nor the connect waits for an answer
        store.get("key")
    except RuntimeError as error:
        return type(error).__name__
    return "served"


def test_torchs_clients_are_refused_where_there_is_a_secret() -> None:
    with procs.cluster() as c, served(SECRET) as (where, server):
        assert c.start(torch_connects, where.host, where.port).result() != "served"
        assert len(server.data) == 0


@pytest.mark.parametrize("use_libuv", [True, False])
def test_a_store_that_torch_hosts_is_recognised(use_libuv: bool) -> None:
    with torchs(use_libuv) as where:
        mode = GreetingMode(SECRET)
        client = MoreOfAClient.connect(where, deadline(), mode)
        assert client.add("n", 1) == 1
        assert mode.greets is False
        client.close()
