"""The process that hosts the store: frozen or killed, while worlds stand and while they are joined."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time

import pytest

from multiworld import RendezvousError, TcpStoreAddress
from multiworld.config import printed
from multiworld.lab.chaos import workload
from multiworld.lab.context import Context, serve_store
from tests.multiworld.faults import acts
from tests.multiworld.faults.bounds import GRACE_SECONDS, JOIN_SECONDS
from tests.multiworld.faults.scene import CALM, Scene

WORLD = "struck"
SHORT = 2.0
BEFORE = "it is over before a backend is made"


def test_killed_under_standing_worlds(scene: Scene) -> None:
    """Worlds that stand do not need it; joining does, and says so at its deadline at the latest."""
    a, b = members = scene.workers(2)
    scene.join(WORLD, members)
    store = scene.store
    scene.injector.kill(scene.host)
    scene.works(WORLD, members, 5)
    started = time.monotonic()
    running = [scene.start_join("new", x, r, 2, store=store, join_timeout=SHORT) for r, x in enumerate((a, b))]
    for call in running:
        assert isinstance(call.outcome().error, RendezvousError)
    assert time.monotonic() - started < SHORT + GRACE_SECONDS
    scene.works(WORLD, members)


def test_frozen_under_standing_worlds(scene: Scene) -> None:
    """Its silence holds nothing up but joining, and joining goes on when it does."""
    members = scene.workers(2)
    scene.join(WORLD, members)
    scene.injector.freeze(scene.host)
    scene.works(WORLD, members, 5)
    running = [scene.start_join("new", worker, rank, 2) for rank, worker in enumerate(members)]
    scene.works(WORLD, members, 20)
    scene.injector.thaw(scene.host)
    for call in running:
        call.result(JOIN_SECONDS + 5)
    scene.works("new", members)
    scene.works(WORLD, members)


@pytest.mark.only_rows("gloo", BEFORE)
def test_frozen_for_longer_than_a_join_may_take(scene: Scene) -> None:
    """The deadline of ``join`` holds even though the store never answers."""
    a, _ = members = scene.workers(2)
    scene.join(CALM, members)
    scene.injector.freeze(scene.host)
    call = scene.start_join(WORLD, a, 0, 2, join_timeout=SHORT)
    outcome = call.outcome(SHORT + 10)
    assert isinstance(outcome.error, RendezvousError), repr(outcome.error)
    assert outcome.seconds < SHORT + GRACE_SECONDS
    scene.works(CALM, members)


def test_member_hosts_it_and_is_killed(scene: Scene) -> None:
    """Rank 0 hosts the store and dies: its worlds break, that of the others goes on, and another store serves."""
    host, a, b = members = scene.workers(3)
    address = host.run(serve_store)
    store = TcpStoreAddress(address.host, address.port)
    scene.join(WORLD, members, store=store)
    scene.join(CALM, [a, b], store=TcpStoreAddress(address.host, address.port, hosted=False))
    scene.injector.kill(host)
    scene.works(CALM, [a, b])
    scene.join("after", [a, b])
    scene.works("after", [a, b])


@pytest.mark.only_rows("gloo", BEFORE)
@pytest.mark.parametrize("said", [b"\x00", b"\x01", b"", b"{", b"\x00\xce\xf7\x85\x3c\x02\xff"], ids=repr)
def test_a_strangers_byte_stops_no_join(scene: Scene, said: bytes) -> None:
    """Half a request from somebody who then waits: only that connection waits with it."""
    members = scene.workers(2)
    with contextlib.ExitStack() as stack:
        for _ in range(5):
            stranger = stack.enter_context(socket.create_connection((scene.store.host, scene.store.port)))
            stranger.sendall(said)
        scene.injector.record("stranger", "store", time.monotonic(), f"sent {said!r}")
        scene.join(WORLD, members)
        scene.works(WORLD, members)


async def many(context: Context, store: TcpStoreAddress, count: int) -> None:
    """Join so many worlds of our own, at one store."""
    for number in range(count):
        await context.mw.join(f"mine-{number}", 0, 1, store=store)


async def try_and_cancel(context: Context, store: TcpStoreAddress, tries: int) -> list[str]:
    """Try to join in vain, some times until the deadline and some until cancelled; the errors."""
    said = []
    for turn in range(tries):
        joining = context.mw.join(f"try-{tries}-{turn}", 0, 2, store=store, join_timeout=0.4)
        try:
            await asyncio.wait_for(joining, 0.2 if turn % 2 else 5.0)
        except (RendezvousError, asyncio.TimeoutError) as error:
            said.append(str(error))
    return said


@pytest.mark.only_rows("gloo", BEFORE)
def test_attempts_at_a_frozen_store_leave_nothing(scene: Scene) -> None:
    """Neither a thread nor a descriptor, however many worlds stand."""
    member = scene.worker()
    member.run(many, scene.store, 40)
    member.run(try_and_cancel, scene.store, 2)  # what is made once is made
    before = member.run(acts.held)
    scene.injector.freeze(scene.host)
    said = member.run(try_and_cancel, scene.store, 6)
    assert len(said) == 6
    assert all("does not answer" in each and str(scene.store) in each for each in said[::2]), said
    deadline = time.monotonic() + 5
    while (now := member.run(acts.held)).threads > before.threads or now.descriptors > before.descriptors:
        assert time.monotonic() < deadline, f"before {before}, after six attempts {now}"
        time.sleep(0.05)  # a cancelled attempt ends within a tick, in a thread of its own


@pytest.mark.only_rows("gloo", BEFORE)
def test_a_dead_store_is_told_in_our_words_only(scene: Scene) -> None:
    """torch's client would print a stack of C++ frames for each attempt."""
    member = scene.worker()
    store = scene.store
    scene.injector.kill(scene.host)
    start = scene.pool.log.stat().st_size
    call = scene.start_join(WORLD, member, 0, 2, store=store, join_timeout=SHORT)
    error = call.outcome().error
    assert isinstance(error, RendezvousError)
    assert "no process listens there" in str(error), str(error)
    assert printed(store.host, store.port) in str(error)
    with scene.pool.log.open("rb") as log:
        log.seek(start)
        assert b"c10d" not in log.read()


@pytest.mark.only_rows("gloo", BEFORE)
def test_a_host_that_holds_the_gil_only_delays(scene: Scene) -> None:
    members = scene.workers(2)
    scene.join(CALM, members)
    held = scene.host.start(workload.hold_gil, 2.0)
    running = [scene.start_join(WORLD, worker, rank, 2) for rank, worker in enumerate(members)]
    scene.works(CALM, members, 5)
    for call in running:
        call.result(JOIN_SECONDS + 5)
    held.result()
    scene.injector.record("gil", "store host", time.monotonic(), "held for 2 s")
    scene.works(WORLD, members)


@pytest.mark.only_rows("gloo", BEFORE)
@pytest.mark.parametrize("host", ["::1", "127.0.0.1", "0.0.0.0", "::"])  # noqa: S104 - that is the question
def test_each_kind_of_address(scene: Scene, host: str) -> None:
    """The address that ``serve_store`` returns is one to join with, printed as one that can be read again."""
    if ":" in host and not _has_ipv6():
        pytest.skip("this machine has no IPv6")
    hosting, *members = scene.workers(3)
    store = hosting.run(serve_store, host)
    assert store.host not in ("0.0.0.0", "::")  # noqa: S104
    assert (f"[{store.host}]" in str(store)) == (":" in store.host)
    for name, given in (("by-address", store), ("by-text", str(store))):
        scene.join(name, members, store=given)
        scene.works(name, members)
    scene.injector.record("address", host, time.monotonic(), str(store))


def _has_ipv6() -> bool:
    with contextlib.suppress(OSError), socket.create_server(("::1", 0), family=socket.AF_INET6):
        return True
    return False
