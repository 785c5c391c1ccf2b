"""Secret, ports and interfaces: from arguments and the environment, kept to by listeners, and refused by name."""

from __future__ import annotations

import pickle
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
import torch

from multiworld import InvalidArgument, MultiWorld, RendezvousError
from multiworld.config import NetworkSettings, TcpStoreAddress, printed
from multiworld.process.hub import Hub
from multiworld.transport.network_settings import (
    LocalAddress,
    chosen_address,
    listen,
    local_addresses,
    network_settings,
)

SECRET = "nobody-may-read-this"  # noqa: S105 - of the tests


@pytest.fixture
def hub() -> Iterator[Hub]:
    made = Hub.acquire()
    yield made
    made.release()


def test_settings_come_from_arguments_or_the_environment() -> None:
    assert network_settings(environment={}) == NetworkSettings()
    environment = {
        "MULTIWORLD_SECRET": SECRET,
        "MULTIWORLD_PORTS": "29600-29699",
        "MULTIWORLD_INTERFACES": "eth0, 10.0.0.0/8",
    }
    found = network_settings(environment=environment)
    assert found == NetworkSettings(SECRET.encode(), range(29600, 29700), ("eth0", "10.0.0.0/8"))
    found = network_settings(b"x", range(7, 9), ["lo"], environment)
    assert found == NetworkSettings(b"x", range(7, 9), ("lo",))
    assert network_settings(ports="29600", environment={}).ports == range(29600, 29601)
    assert network_settings(environment={"MULTIWORLD_PORTS": "", "MULTIWORLD_INTERFACES": ""}) == NetworkSettings()
    assert hash(found) == hash(pickle.loads(pickle.dumps(found)))  # noqa: S301 - ours


@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        ({"secret": ""}, "MULTIWORLD_SECRET"),
        ({"secret": 7}, "MULTIWORLD_SECRET"),
        ({"ports": "80-70"}, "MULTIWORLD_PORTS"),
        ({"ports": "x"}, "MULTIWORLD_PORTS"),
        ({"ports": "0-9"}, "MULTIWORLD_PORTS"),
        ({"ports": "1-65536"}, "MULTIWORLD_PORTS"),
        ({"ports": 29600}, "MULTIWORLD_PORTS"),
        ({"interfaces": "10.0.0.0/99"}, "MULTIWORLD_INTERFACES"),
        ({"interfaces": "eth0,,eth1"}, "MULTIWORLD_INTERFACES"),
        ({"interfaces": ("eth 0",)}, "MULTIWORLD_INTERFACES"),
        ({"interfaces": (b"lo",)}, "interfaces="),
        ({"interfaces": 7}, "MULTIWORLD_INTERFACES"),
        ({"ports": "30-20"}, "'30-20'"),
        ({"interfaces": "no-such-interface,203.0.113.0/24"}, "MULTIWORLD_INTERFACES"),
    ],
    ids=str,
)
def test_settings_that_cannot_be_right_are_refused_by_name(wrong: dict[str, Any], names: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        MultiWorld(**wrong)
    assert names in str(caught.value)
    assert caught.value.remedy


def test_the_secret_is_in_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIWORLD_SECRET", SECRET)
    with MultiWorld() as mw:
        assert mw.defaults.network.secret == SECRET.encode()
        assert SECRET not in f"{mw!r} {mw.defaults!r} {mw.defaults.network}"


def test_an_empty_variable_is_no_open_door(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIWORLD_SECRET", "")
    with pytest.raises(InvalidArgument, match="is empty"):
        MultiWorld()


def test_addresses_of_this_machine() -> None:
    found = local_addresses()
    assert LocalAddress("lo", "127.0.0.1") in found
    for one in found:
        assert chosen_address((one.interface,))
        assert chosen_address((one.address.partition("%")[0],)) == one.address
    assert chosen_address(("203.0.113.0/24", "127.0.0.0/8")) == "127.0.0.1"
    assert chosen_address(("lo", "0.0.0.0/0")) == "127.0.0.1"


def _free_range(length: int) -> range:
    """Ports that were free a moment ago."""
    for first in range(29600, 60000, length):
        with ExitStack() as stack:
            try:
                for port in range(first, first + length):
                    stack.enter_context(socket.create_server(("127.0.0.1", port)))
            except OSError:
                continue
            return range(first, first + length)
    raise AssertionError("no free range")


def test_listeners_keep_to_the_ports_and_say_when_there_is_none_left() -> None:
    network = NetworkSettings(ports=_free_range(3))
    with ExitStack() as stack:
        taken = [stack.enter_context(listen("127.0.0.1", 0, network)).getsockname()[1] for _ in range(3)]
        assert sorted(taken) == list(network.ports or ())
        with pytest.raises(RendezvousError) as caught:
            listen("127.0.0.1", 0, network)
        assert "MULTIWORLD_PORTS" in caught.value.cause
        assert f"{taken[0]}-{taken[-1]}" in caught.value.what
    with listen("127.0.0.1", 0, network) as again:
        assert again.getsockname()[1] == taken[0]


def test_members_are_where_the_ports_are(store: str) -> None:
    ports = _free_range(2)
    with MultiWorld(ports=ports, interfaces="lo") as a, MultiWorld(ports=ports, interfaces="lo", secret=SECRET) as b:
        for mw, port in ((a, ports[0]), (b, ports[1])):
            mw.sync.join(f"w{port}", 0, 1, store=store)
            endpoint = mw._table.resources.hub.endpoint("127.0.0.1", mw.defaults.network)
            assert endpoint.port == port
        with MultiWorld(ports=ports, op_timeout=5) as c:
            assert c.sync.join("again", 0, 1, store=store)  # the same settings share a listener
    with socket.create_server(("127.0.0.1", ports[0])), socket.create_server(("127.0.0.1", ports[1])):
        with MultiWorld(ports=ports) as mw, pytest.raises(RendezvousError) as caught:
            mw.sync.join("none", 0, 1, store=store)
        assert (caught.value.world, caught.value.rank, caught.value.operation) == ("none", 0, "join")


def _pair(store: str, **options: Any) -> None:
    """Join two members, each with the options, and use the world in both ways."""
    with MultiWorld(**options) as a, MultiWorld(**options) as b, ThreadPoolExecutor(2) as pool:
        worlds = list(pool.map(lambda mw, rank: mw.sync.join("w", rank, 2, store=store), (a, b), range(2)))
        totals = [torch.ones(300_000), torch.ones(300_000)]
        list(pool.map(lambda w, t: w.sync.all_reduce(t), worlds, totals))
        assert all(bool((total == 2).all()) for total in totals)


@pytest.mark.parametrize("secret", [None, SECRET], ids=["open", "secret"])
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_worlds_over_either_protocol(store: str, address: str, secret: str | None) -> None:
    if address not in {one.address for one in local_addresses()}:
        pytest.skip(f"no {address} here")
    _pair(store, address=address, secret=secret)


def test_two_settings_have_two_endpoints(hub: Hub) -> None:
    one, other = NetworkSettings(b"one"), NetworkSettings(b"other")
    assert hub.endpoint("127.0.0.1", one) is hub.endpoint("127.0.0.1", NetworkSettings(b"one"))
    assert hub.endpoint("127.0.0.1", one) is not hub.endpoint("127.0.0.1", other)


def test_a_link_local_address_needs_its_interface() -> None:
    with pytest.raises(InvalidArgument, match="does not say on which interface"):
        listen("fe80::1", 0, NetworkSettings())


def test_a_link_local_address_with_its_interface_works() -> None:
    link_local = [one.address for one in local_addresses() if one.link_local and ":" in one.address]
    if not link_local:
        pytest.skip("no link-local address here")
    with listen(link_local[0], 0, NetworkSettings()) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection((link_local[0], port), timeout=5) as ours:
            theirs, _ = listener.accept()
            theirs.close()
            assert ours.recv(1) == b""


def test_addresses_are_printed_with_brackets_where_they_need_them() -> None:
    assert printed("127.0.0.1", 29500) == "127.0.0.1:29500"
    assert printed("::1", 29500) == "[::1]:29500"
    assert str(TcpStoreAddress("::1", 29500)) == "tcp://[::1]:29500"


def test_a_name_that_no_greeting_holds_is_refused(store: str) -> None:
    with MultiWorld() as mw:
        with pytest.raises(InvalidArgument, match="too long"):
            mw.sync.join("n" * 4000, 0, 1, store=store)
        assert mw.sync.join("n" * 2900, 0, 1, store=store)
