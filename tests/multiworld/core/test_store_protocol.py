"""The store's protocol: our client and server against torch's and each other, and rubbish against our server."""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import procs
import pytest
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st

from multiworld.config import TcpStoreAddress
from multiworld.lab.context import Context
from multiworld.store.client import AT_ONCE, Cancelled, Deadline, GreetingMode, StoreFailed
from multiworld.store.server import MAX_STRANGERS, STRANGER_SECONDS
from multiworld.store.server_data import Limits, Refused, StoreData
from multiworld.store.server_protocol import MAX_UNTAKEN_BYTES, ServerProtocol
from multiworld.store.wire import COUNT, HELLO, NUMBER, STOP_WAITING, WAIT_CANCELED, Request, request, sized
from tests.multiworld.core.stores import SECRET, SOON, MoreOfAClient, deadline, served, torchs

SMALL = Limits(key_bytes=64, value_bytes=4096, request_bytes=8192, list_keys=16, keys=100, total_bytes=64 << 10)


SERVERS: dict[str, Callable[[], Any]] = {
    "ours": lambda: served(),
    "torch, libuv": lambda: torchs(True),
    "torch, legacy": lambda: torchs(False),
}


@pytest.fixture(params=SERVERS)
def where(request: pytest.FixtureRequest) -> Iterator[TcpStoreAddress]:
    """Each kind of server."""
    with SERVERS[request.param]() as made:
        yield made[0] if isinstance(made, tuple) else made


@pytest.fixture
def client(where: TcpStoreAddress) -> Iterator[MoreOfAClient]:
    made = MoreOfAClient.connect(where, deadline(30))
    yield made
    made.close()


def test_our_client_gets_the_same_answers_from_each_server(client: MoreOfAClient) -> None:
    assert client.num_keys() == 0
    assert client.compare_set("key", "", "first") == b"first"
    assert client.compare_set("key", "", "second") == b"first"
    assert client.compare_set("key", "first", "second") == b"second"
    assert client.compare_set("missing", "expected", "desired") == b"expected"
    assert client.get("key") == b"second"
    assert client.get("missing") is None
    assert client.check(["key"])
    assert not client.check(["key", "missing"])
    client.set("empty", "")
    assert client.get("empty") == b""
    assert client.delete_key("empty")
    client.set("large", "x" * 500_000)
    assert client.get("large") == b"x" * 500_000
    assert [client.add("number", n) for n in (0, 5, -7)] == [0, 5, -2]
    assert client.get("number") == b"-2"
    assert client.num_keys() == 3
    assert [client.delete_key("key"), client.delete_key("key")] == [True, False]
    assert client.num_keys() == 2


def test_requests_that_go_out_together_are_answered_in_order(client: MoreOfAClient) -> None:
    keys = [f"key-{number}" for number in range(3 * AT_ONCE + 1)]
    values = [key * 50 for key in keys]
    assert client.compare_sets((key, "", value) for key, value in zip(keys, values, strict=True)) == [
        value.encode() for value in values
    ]
    assert client.compare_sets((key, "other", "none") for key in reversed(keys)) == [
        value.encode() for value in reversed(values)
    ]
    assert client.delete_keys(["missing", *keys, keys[0]]) == [False, *[True] * len(keys), False]
    assert client.num_keys() == 0


def test_a_wait_ends_with_the_last_key_or_its_time(
    where: TcpStoreAddress, client: MoreOfAClient, request: pytest.FixtureRequest
) -> None:
    told = "legacy" not in request.node.name  # it wakes nobody when it has compared and set: the wait ends by itself
    other = MoreOfAClient.connect(where, deadline(30))
    with ThreadPoolExecutor(1) as pool:
        assert not client.wait(["a"], 0.05)
        waiting = pool.submit(client.wait, ["a", "b"], 30.0 if told else 0.2)
        for key in ("a", "b"):
            assert not told or not waiting.done()
            other.compare_set(key, "", "here")
        assert waiting.result(SOON) or not told  # the old one answers a wait that comes after the keys
    assert client.wait(["b", "a"], 0.0)
    assert [client.wait(["c"], 0.0) for _ in range(20)] == [False] * 20
    assert client.get("a") == b"here", "the connection is in order"
    other.close()


def test_a_wait_that_ends_as_it_is_cancelled_leaves_the_connection_in_order() -> None:
    """The store says that the keys are there, and then answers the cancellation as well."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        where = TcpStoreAddress("127.0.0.1", listener.getsockname()[1])
        connecting = pool.submit(MoreOfAClient.connect, where, deadline())
        store, _ = listener.accept()
        with store, contextlib.closing(store.makefile("rb")) as asked:
            asked.read(len(HELLO) + 1)
            store.sendall(NUMBER.pack(0))
            client = connecting.result(SOON)
            waiting = pool.submit(client.wait, ["a"], 0.05)
            asked.read(1 + 2 * COUNT.size + len("/a") + 1)  # WAIT with its key, and CANCEL_WAIT
            store.sendall(STOP_WAITING + WAIT_CANCELED)
            assert waiting.result(SOON)
            counting = pool.submit(client.num_keys)
            asked.read(1)
            store.sendall(NUMBER.pack(7))
            assert counting.result(SOON) == 7
            client.close()


def test_keys_are_those_of_torchs_clients(where: TcpStoreAddress, client: MoreOfAClient) -> None:
    theirs = dist.TCPStore(where.host, where.port, None, False, timedelta(seconds=10))
    client.compare_set("ours", "", "1")
    theirs.set("theirs", "2")
    assert theirs.get("ours") == b"1"
    assert client.get("theirs") == b"2"


def converse(context: Context, host: str, port: int) -> list[Any]:
    """Talk as torch's client, in a process of its own, because some of its calls hold the GIL."""
    store = dist.TCPStore(host, port, None, False, timedelta(seconds=10))
    store.set("key", "value")
    said: list[Any] = [store.get("key"), store.add("n", 3), store.add("n", -1), store.get("n"), store.num_keys()]
    said += [store.compare_set("c", "", "1"), store.compare_set("c", "1", "2"), store.compare_set("none", "1", "2")]
    said += [store.delete_key("key"), store.delete_key("key")]
    with contextlib.suppress(RuntimeError):
        store.wait(["never", "n"], timedelta(seconds=0.2))
        said.append("it did not wait")
    said.append(store.add("n", 1))  # the connection is in order after the cancelled wait
    for method, *arguments in (
        ("check", ["n", "c"]),
        ("check", ["nobody"]),
        ("append", "log", "a"),
        ("append", "log", "b"),
        ("get", "log"),
        ("multi_set", ["m1", "m2"], ["1", "x" * 100_000]),
        ("multi_get", ["m1", "m2"]),
        ("queue_push", "q", "first"),
        ("queue_push", "q", "second"),
        ("queue_len", "q"),
        ("queue_pop", "q"),
        ("queue_pop", "q"),
        ("queue_len", "q"),
        ("num_keys",),
        ("barrier", "b", 1),
    ):
        if hasattr(store, method):
            said.append((method, getattr(store, method)(*arguments)))
    if hasattr(store, "list_keys"):
        said.append(sorted(store.list_keys()))
    return said


def test_torchs_client_gets_the_same_answers_from_our_server_as_from_its_own() -> None:
    with procs.cluster() as c, served() as (ours, _), torchs(True) as theirs:
        expected = c.start(converse, theirs.host, theirs.port)
        got = c.start(converse, ours.host, ours.port)
        assert got.result() == expected.result()


def wait_for_two(context: Context, host: str, port: int) -> bytes:
    store = dist.TCPStore(host, port, None, False, timedelta(seconds=20))
    context.send("waiting")
    store.wait(["one", "two"], timedelta(seconds=20))
    return bytes(store.get("two"))


def test_a_wait_is_answered_when_its_last_key_comes() -> None:
    with procs.cluster() as c, served() as (where, server):
        waiter = c.start(wait_for_two, where.host, where.port)
        assert waiter.recv() == "waiting"
        procs.wait_until(lambda: len(server.data._awaited) == 1, SOON, "the wait did not arrive")
        client = MoreOfAClient.connect(where, deadline())
        client.set("one", "1")
        assert client.num_keys() == 1
        assert len(server.data._awaited) == 1
        client.compare_set("two", "", "2")
        assert waiter.result() == b"2"
        client.close()


def test_who_waits_and_goes_is_forgotten() -> None:
    with served() as (where, server):
        with socket.create_connection((where.host, where.port)) as waiter:
            waiter.sendall(HELLO + request(Request.WAIT, COUNT.pack(1), sized(b"/never")))
            procs.wait_until(lambda: bool(server.data._awaited), SOON, "the wait did not arrive")
        procs.wait_until(lambda: not server.data._awaited, SOON, "it is still waited for")
        assert not server.data._waiters


def test_a_wait_that_its_own_connection_ends() -> None:
    """The answer of a wait must not be sent in the middle of the request that ends it."""
    with served() as (where, _), socket.create_connection((where.host, where.port), timeout=SOON) as sock:
        wait = request(Request.WAIT, COUNT.pack(1), sized(b"/k"))
        sock.sendall(HELLO + wait + request(Request.SET, sized(b"/k"), sized(b"v")) + request(Request.GETNUMKEYS))
        answer = b""
        while len(answer) < 9:
            answer += sock.recv(9)
        assert sorted(answer) == sorted(b"\x00" + NUMBER.pack(1))


# Rubbish.

KEYS, VALUES, COUNTS = st.binary(max_size=8), st.binary(max_size=99), st.integers(0, 2**64 - 1)
NUMBERS = st.integers(-(2**63), 2**63 - 1)
REQUESTS = st.lists(
    st.one_of(
        st.binary(max_size=40),
        st.builds(lambda k, v: request(Request.SET, sized(k), sized(v)), KEYS, VALUES),
        st.builds(lambda k, n: request(Request.ADD, sized(k), NUMBER.pack(n)), KEYS, NUMBERS),
        st.builds(
            lambda kind, keys: request(kind, COUNT.pack(len(keys)), *map(sized, keys)),
            st.sampled_from([Request.CHECK, Request.WAIT, Request.MULTI_GET]),
            st.lists(KEYS, max_size=5),
        ),
        st.builds(lambda kind, k: bytes([kind]) + sized(k), st.sampled_from([3, 8, 15, 16]), KEYS),
        st.sampled_from([request(Request.GETNUMKEYS), request(Request.CANCEL_WAIT), request(Request.LIST_KEYS)]),
        st.builds(lambda kind, size: bytes([kind]) + COUNT.pack(size), st.integers(0, 20), COUNTS),
    ),
    max_size=8,
)


def _said(pieces: list[bytes], secret: bytes | None = None) -> tuple[bytes, bool, int]:
    """Return the answer to a connection, whether it is refused, and how many keys there are then."""
    data = StoreData(SMALL)
    talk = ServerProtocol(data, SMALL, secret, lambda: None)
    refused = False
    try:
        for piece in pieces:
            talk.feed(piece)
    except Refused:
        refused = True
    out = bytes(talk.out)
    talk.end()
    assert not data._waiters
    assert not data._awaited
    return out, refused, len(data)


@given(st.booleans(), REQUESTS, st.integers(1, 50))
@settings(max_examples=300, deadline=None)
def test_any_bytes_are_served_or_refused_however_they_are_cut(greets: bool, requests: list[bytes], cut: int) -> None:
    whole = (HELLO if greets else b"") + b"".join(requests)
    cut_up = [whole[at : at + cut] for at in range(0, len(whole), cut)]
    assert _said([whole]) == _said(cut_up)


@given(st.binary(max_size=300))
@settings(max_examples=300, deadline=None)
def test_with_a_secret_no_bytes_get_through(data: bytes) -> None:
    for begin in (b"", HELLO, b"{"):
        _, _, keys = _said([begin + data + request(Request.SET, sized(b"/k"), sized(b"v"))], SECRET)
        assert keys == 0


@pytest.mark.parametrize(
    "rubbish",
    [
        b"\x00",
        b"\x01",
        HELLO[:4],
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00\x00\x00\x00\x00",
        b"{" * 5000,
        HELLO + b"\xff",
        HELLO + request(Request.SET, COUNT.pack(2**64 - 1)),
        HELLO + request(Request.SET, sized(b"k" * 5000)),
        HELLO + request(Request.WAIT, COUNT.pack(2**63)),
        HELLO + request(Request.SET, sized(b"/m"), sized(b"x")) + request(Request.ADD, sized(b"/m"), NUMBER.pack(1)),
    ],
    ids=lambda value: repr(value[:12]),
)
def test_rubbish_closes_only_its_own_connection(rubbish: bytes, caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.INFO),
        served() as (where, _),
        socket.create_connection((where.host, where.port)) as bad,
    ):
        client = MoreOfAClient.connect(where, deadline(30))
        bad.sendall(rubbish)
        for n in range(20):
            client.deadline = deadline(1.0)
            assert client.add("n", 1) == n + 1
        bad.settimeout(STRANGER_SECONDS + SOON)
        with contextlib.suppress(ConnectionResetError):
            while bad.recv(4096):
                pass
        client.close()
    assert not caplog.records, caplog.text


def test_a_thousand_strangers_cost_no_more_than_a_few() -> None:
    with served() as (where, server), contextlib.ExitStack() as stack:
        for _ in range(1000):
            stack.enter_context(socket.create_connection((where.host, where.port), timeout=30)).send(b"\x00")
        for n in range(20):
            client = MoreOfAClient.connect(where, deadline(30))
            assert client.add("n", 1) == n + 1
            client.close()
        assert len(server._strangers) <= MAX_STRANGERS
        procs.wait_until(lambda: not server._connections, STRANGER_SECONDS + 60, "strangers stay")


def test_many_clients_at_once_are_not_taken_for_strangers() -> None:
    """All members of a world come at once; none of them is dropped as the oldest of too many."""
    with served() as (where, _), contextlib.ExitStack() as stack:
        socks = [
            stack.enter_context(socket.create_connection((where.host, where.port), timeout=SOON)) for _ in range(200)
        ]
        for sock in socks:
            with contextlib.suppress(OSError):
                sock.sendall(HELLO + request(Request.GETNUMKEYS))
        results = [None] * 100

        def work(number: int) -> None:
            client = MoreOfAClient.connect(where, deadline())
            results[number] = client.add("n", 1)  # type: ignore[call-overload]
            client.close()

        threads = [threading.Thread(target=work, args=(n,)) for n in range(100)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(SOON * 2)
        assert sorted(results) == list(range(1, 101))  # type: ignore[type-var]


def test_who_does_not_take_its_answers_is_not_served_on() -> None:
    limits = Limits()
    with served() as (where, server), socket.create_connection((where.host, where.port), timeout=SOON) as greedy:
        client = MoreOfAClient.connect(where, deadline(30))
        client.set("large", "x" * limits.value_bytes)
        greedy.sendall(HELLO)
        greedy.setblocking(False)
        ask = request(Request.GET, sized(b"/large"))
        with contextlib.suppress(BlockingIOError):
            for _ in range(100_000):
                greedy.send(ask * 100)
        for n in range(50):
            client.deadline = deadline(1.0)
            assert client.add("n", 1) == n + 1
        untaken = sum(len(connection._protocol.out) for connection in server._connections)
        assert untaken <= MAX_UNTAKEN_BYTES + limits.value_bytes + 100
        client.close()


@pytest.mark.parametrize(
    "fill",
    [
        lambda client, n: client.set(f"key-{n}", "v"),
        lambda client, n: client.set(f"key-{n}", "v" * 4000),
        lambda client, n: client.add(f"key-{n}", 1),
    ],
    ids=["keys", "bytes", "numbers"],
)
def test_a_full_store_refuses_more_and_serves_on(fill: Callable[[MoreOfAClient, int], Any]) -> None:
    with served(limits=SMALL) as (where, _):
        other, filler = (MoreOfAClient.connect(where, deadline(30)) for _ in range(2))
        other.set("mine", "1")
        with pytest.raises(StoreFailed, match="hung up"):  # noqa: PT012 - any of the calls may be the one too many
            for n in range(1000):
                fill(filler, n)
                filler.num_keys()
        assert other.get("mine") == b"1"
        assert other.num_keys() <= SMALL.keys
        assert other.delete_key("key-1")
        other.set("key-1", "v")
        assert other.check(["key-1"])
        other.close()


# The client's waits.


@pytest.fixture
def silent() -> Iterator[TcpStoreAddress]:
    """A frozen store: connections are made, and nothing is ever answered."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield TcpStoreAddress("127.0.0.1", listener.getsockname()[1])


@pytest.mark.parametrize("secret", [None, SECRET], ids=["open", "secret"])
def test_a_silent_store_is_waited_for_as_long_as_patience_lasts(silent: TcpStoreAddress, secret: bytes | None) -> None:
    started = time.monotonic()
    with pytest.raises(StoreFailed, match="does not answer"):
        MoreOfAClient.connect(silent, deadline(0.5), GreetingMode(secret))
    assert 0.4 < time.monotonic() - started < 0.5 + SOON


def test_a_wait_ends_when_nobody_wants_it(silent: TcpStoreAddress) -> None:
    unwanted, ended = threading.Event(), threading.Event()

    def work() -> None:
        with pytest.raises(Cancelled):
            MoreOfAClient.connect(silent, Deadline(time.monotonic() + 60, unwanted.is_set))
        ended.set()

    threading.Thread(target=work, daemon=True).start()
    assert not ended.wait(0.2)
    unwanted.set()
    assert ended.wait(SOON)


def test_a_store_that_hangs_up_in_the_middle() -> None:
    with served() as (where, server):
        client = MoreOfAClient.connect(where, deadline())
        server.close()
        with pytest.raises(StoreFailed, match="hung up"):
            client.num_keys()
        with pytest.raises(StoreFailed, match="cannot be reached"):
            MoreOfAClient.connect(where, deadline(0.3))
