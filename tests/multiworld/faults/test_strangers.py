"""Strangers at the port where members reach each other: whatever they send, and whenever, the worlds go on.

A stranger is shaken off when the endpoint has closed its connections, the process holds no more sockets than before,
and nothing of it is in the log. The port of a member is in its claim, which is in the store.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from multiworld import RendezvousError
from multiworld.lab.context import Context
from multiworld.lab.workers import Running, Worker
from multiworld.rendezvous.ledger import Claim, Ledger
from multiworld.store.client import Deadline, GreetingMode, StoreClient
from multiworld.transport.greeting import PROTOCOL
from tests.multiworld.faults import acts
from tests.multiworld.faults.bounds import AT_ONCE_SECONDS, GRACE_SECONDS, JOIN_SECONDS
from tests.multiworld.faults.scene import CALM, Scene
from tests.multiworld.procs import wait_until

WORLD = "struck"
#: an endpoint gives a connection two seconds
SHAKEN_SECONDS = 2.0 + GRACE_SECONDS
#: connections that an endpoint holds which have not introduced themselves
MOST_VISITORS = 64
MANY = 1000
SECRET = "nobody-may-read-this"  # noqa: S105 - of the tests

pytestmark = pytest.mark.only_rows("gloo", "strangers reach the control lanes, which are the same on every backend")


@dataclass(frozen=True)
class Member:
    """A member of a world as the store shows it: what a stranger may know at most."""

    world: str
    generation: int
    rank: int
    claim: Claim

    def hello(self, **changed: Any) -> bytes:
        """The greeting that a member of rank 1 begins with, as somebody who listens on the wire records it."""
        fields = {
            "multiworld": PROTOCOL,
            "role": "lane",
            "world": self.world,
            "generation": self.generation,
            "from": 1,
            "to": self.rank,
            "incarnation": self.claim.incarnation,
        }
        return json.dumps({**fields, **changed}).encode() + b"\n"

    def connect(self) -> socket.socket:
        return socket.create_connection((self.claim.address, self.claim.port), timeout=5)


def claim_of(context: Context, world: str, generation: int, rank: int) -> Claim:
    """Read a claim as soon as it is there, by the worker that hosts the store."""
    until = time.monotonic() + 60
    approach = GreetingMode(context.mw.defaults.network.secret)
    ledger = Ledger(StoreClient.connect(context.kept["store"], Deadline(until), approach), world)
    while (claim := ledger.claimed(generation, rank)) is None:
        assert time.monotonic() < until, f"rank {rank} of {world} is not claimed"
        time.sleep(0.005)
    return claim


def remember_store(context: Context, store: Any) -> None:
    context.kept["store"] = store


def member(scene: Scene, world: str, generation: int, rank: int = 0) -> Member:
    scene.host.run(remember_store, scene.store)
    return Member(world, generation, rank, scene.host.run(claim_of, world, generation, rank))


# what strangers do; each yields with its connections open


def _one_byte(at: Member) -> Iterator[list[socket.socket]]:
    sock = at.connect()
    sock.sendall(b"{")
    yield [sock]


def _silence(at: Member) -> Iterator[list[socket.socket]]:
    yield [at.connect() for _ in range(MANY)]


def _garbage(at: Member) -> Iterator[list[socket.socket]]:
    socks = []
    for said in (
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 64,
        b"\x00<\x7f\x85\xce\x07",
        b"\n",
        b"null\n",
        b'{"world": []}\n',
        b'"' * 5000,
        b"\xff" * 5000,
        b"{}" * 9000,
        at.hello(role=7),
        at.hello(world=None),
        at.hello(world={}),
        at.hello(**{"from": "1"}),
    ):
        sock = at.connect()
        with contextlib.suppress(OSError):  # it may be closed before all of it is out
            sock.sendall(said)
        socks.append(sock)
    yield socks


def _deep(at: Member) -> Iterator[list[socket.socket]]:
    socks = [at.connect() for _ in range(4)]
    for sock, said in zip(socks, (b"[", b'{"a":', b'[{"a":', b'{"world":['), strict=True):
        sock.sendall((said * 4095)[:4094] + b"\n")
    yield socks


def _replay(at: Member) -> Iterator[list[socket.socket]]:
    """Repeat what the member of rank 1 has said, again and again, and what it would not say."""
    socks = []
    for turn in range(200):
        for changed in ({}, {"role": "control"}) if turn else ({"from": 0}, {"from": 2}, {"from": 10**9}):
            sock = at.connect()
            sock.sendall(at.hello(**changed))
            socks.append(sock)
    yield socks


def _drip(at: Member) -> Iterator[list[socket.socket]]:
    sock = at.connect()
    over = threading.Event()

    def drip() -> None:
        with contextlib.suppress(OSError):
            while not over.wait(0.02):
                sock.send(b" ")

    thread = threading.Thread(target=drip, daemon=True)
    thread.start()
    yield [sock]
    over.set()
    thread.join(5)


ATTACKS: dict[str, Callable[[Member], Iterator[list[socket.socket]]]] = {
    "one byte": _one_byte,
    "1000 silent": _silence,
    "garbage": _garbage,
    "deep json": _deep,
    "replay": _replay,
    "drip": _drip,
}


def attacks(guarded: str) -> pytest.MarkDecorator:
    """Make a row of each attack on members without a secret, and of one, ``guarded``, on members that have one.

    A secret changes the greeting alone, so the other rows with it are the nightly run's.
    """
    left = pytest.mark.nightly(f"the row {guarded}")
    rows = [
        *(pytest.param(name, "", id=f"open-{name}") for name in ATTACKS),
        *(pytest.param(name, SECRET, id=f"secret-{name}", marks=() if name == guarded else left) for name in ATTACKS),
    ]
    return pytest.mark.parametrize(("attack", "secret"), rows)


def closed(sock: socket.socket) -> bool:
    """Return whether the other side has ended the connection; what it has said before is dropped."""
    sock.setblocking(False)  # with a time-out, even MSG_DONTWAIT would wait
    try:
        while sock.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


@contextlib.contextmanager
def strangers(scene: Scene, attack: str, at: Member, target: Worker, kept: int = 0) -> Iterator[None]:
    """Attack, let the block run meanwhile, and see that all of it is shaken off; ``kept`` connections of it may be
    taken for a member's."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4 * MANY), hard))
    before = target.run(acts.held).sockets
    started = time.monotonic()
    with contextlib.ExitStack() as stack:
        attacking = ATTACKS[attack](at)
        socks = next(attacking)
        for sock in socks:
            stack.enter_context(sock)
        scene.injector.record("strangers", target.name, started, f"{len(socks)} connections: {attack}")
        assert target.run(acts.held).sockets <= before + MOST_VISITORS + kept + 2, "it holds on to all of them"
        yield
        wait_until(lambda: sum(map(closed, socks)) >= len(socks) - kept, SHAKEN_SECONDS, "they are not shaken off")
        next(attacking, None)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    log = scene.pool.log.read_text(errors="replace")
    assert "Traceback" not in log, log[-3000:]
    assert "goes on after an error" not in log, log[-3000:]


@pytest.fixture(autouse=True)
def _fresh_log(request: pytest.FixtureRequest) -> None:
    if "scene" in request.fixturenames:
        request.getfixturevalue("pool").log.write_bytes(b"")


@pytest.fixture
def pair(secret: str, scene: Scene) -> list[Worker]:
    """Two workers, with a secret or without."""
    env = {"MULTIWORLD_SECRET": secret} if secret else {}
    scene.host_with(env)
    return [scene.worker(env=env) for _ in range(2)]


@attacks(guarded="garbage")
def test_before_a_join(scene: Scene, pair: list[Worker], attack: str) -> None:
    scene.join(CALM, pair)
    with strangers(scene, attack, member(scene, CALM, 1), pair[0]):
        scene.join(WORLD, pair)
        scene.works(WORLD, pair)
    scene.works(CALM, pair)


@attacks(guarded="replay")
def test_during_a_join(scene: Scene, pair: list[Worker], attack: str) -> None:
    """One member waits for the other. Who replays may take the other's place where there is no secret, but not keep
    the world from being joined."""
    scene.join(CALM, pair)
    first = scene.start_join(WORLD, pair[0], 0, 2)
    place_taken = attack == "replay" and "MULTIWORLD_SECRET" not in pair[0].run(_environment)
    with strangers(scene, attack, member(scene, WORLD, 1), pair[0], kept=2 if place_taken else 0):
        second = scene.start_join(WORLD, pair[1], 1, 2)
        assert [call.result()[0] for call in (first, second)] == [0, 1]
        scene.works(WORLD, pair)
    scene.works(CALM, pair)
    scene.works(WORLD, pair)


def _environment(context: Context) -> dict[str, str]:
    return dict(os.environ)


@attacks(guarded="drip")
def test_after_a_join(scene: Scene, pair: list[Worker], attack: str) -> None:
    scene.join(WORLD, pair)
    with strangers(scene, attack, member(scene, WORLD, 1), pair[0]):
        scene.works(WORLD, pair)
    scene.works(WORLD, pair)


@attacks(guarded="replay")
def test_at_a_broken_world_and_a_rejoined_one(scene: Scene, pair: list[Worker], attack: str) -> None:
    scene.join(WORLD, pair)
    at = member(scene, WORLD, 1)
    pair[1].run(acts.abort, WORLD)
    pair[0].run(acts.await_break, WORLD)
    with strangers(scene, attack, at, pair[0]):
        assert scene.everywhere(pair, acts.rejoin, WORLD) == [2, 2]
        scene.works(WORLD, pair)
    with strangers(scene, attack, member(scene, WORLD, 2), pair[0]):
        scene.works(WORLD, pair)
    scene.works(WORLD, pair)


@pytest.mark.parametrize("secret", ["", SECRET], ids=["open", "secret"])
def test_a_flood_keeps_no_member_out(scene: Scene, pair: list[Worker]) -> None:
    """Connections come as fast as they can while members join, break and rejoin."""
    scene.join(CALM, pair)
    at, over, made = member(scene, CALM, 1), threading.Event(), [0]

    def flood() -> None:
        held: list[socket.socket] = []
        while not over.is_set():
            with contextlib.suppress(OSError):
                held.append(at.connect())
                made[0] += 1
            if len(held) > 100:
                held.pop(0).close()
        for sock in held:
            sock.close()

    thread = threading.Thread(target=flood, daemon=True)
    started = time.monotonic()
    thread.start()
    try:
        for turn in range(3):
            scene.join(f"flooded-{turn}", pair)
            scene.works(f"flooded-{turn}", pair)
        scene.works(CALM, pair)
    finally:
        over.set()
        thread.join(10)
    scene.injector.record("flood", pair[0].name, started, f"{made[0]} connections")
    assert made[0] > MOST_VISITORS


def ask(at: Member, **changed: Any) -> dict[str, Any]:
    """Say hello; the answer."""
    with at.connect() as sock:
        sock.sendall(at.hello(**changed))
        assert select.select([sock], [], [], 5)[0]
        return dict(json.loads(sock.makefile("rb").readline() or b"{}"))


def test_each_peer_is_let_in_once_and_only_who_is_to_dial(scene: Scene) -> None:
    """No secret: who knows a claim can still not be what no member can be."""
    workers = scene.workers(2)
    started = time.monotonic()
    first = scene.start_join(WORLD, workers[0], 0, 3, join_timeout=4.0)
    at = member(scene, WORLD, 1)
    for changed in (
        {"from": 0},
        {"from": -1},
        {"from": 3},
        {"from": 2**40},
        {"to": 1},
        {"generation": 2},
        {"world": "other"},
        {"incarnation": "0" * 16},
    ):
        assert ask(at, **changed).get("ok") is not True, changed
    assert ask(at)["ok"] is True
    again = ask(at)
    assert again["ok"] is False
    assert "already" in again["why"]
    assert ask(at, **{"role": "probe", "from": -1})["ok"] is True
    scene.injector.record("impostors", workers[0].name, started, "10 hellos")
    assert isinstance(first.outcome().error, RendezvousError)


def _named(call: Running, words: str, within: float) -> RendezvousError:
    outcome = call.outcome()
    assert isinstance(outcome.error, RendezvousError), repr(outcome.error)
    assert words in str(outcome.error), str(outcome.error)
    assert "same secret" in outcome.error.remedy
    assert outcome.seconds < within
    return outcome.error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lower", "higher", "of_dialler", "of_acceptor"),
    [
        (SECRET, "", "has a secret, this process has none", "has no secret, this process has one"),
        ("", SECRET, "has no secret, this process has one", "has a secret, this process has none"),
        (SECRET, SECRET + "!", "has another secret than this process", "has another secret than this process"),
    ],
    ids=["lower rank only", "higher rank only", "different"],
)
def test_secrets_that_differ_are_named_by_both_sides(
    scene: Scene, tmp_path: Path, lower: str, higher: str, of_dialler: str, of_acceptor: str
) -> None:
    """They meet at a store that knows no secret; one that we host would refuse one of them before."""
    workers = [scene.worker(env={"MULTIWORLD_SECRET": s} if s else {}) for s in (lower, higher)]
    started = time.monotonic()
    store = f"file://{tmp_path}/store"
    calls = [
        scene.start_join(WORLD, worker, rank, 2, store=store, join_timeout=timeout)
        for rank, (worker, timeout) in enumerate(zip(workers, (8.0, JOIN_SECONDS), strict=True))
    ]
    _named(calls[1], of_dialler, AT_ONCE_SECONDS)  # not at its deadline
    _named(calls[0], of_acceptor, 8.0 + GRACE_SECONDS)
    scene.injector.record("secrets differ", "", started, "both named it")
    log = scene.pool.log.read_text(errors="replace")
    assert of_acceptor in log
    assert SECRET not in log
    assert "Traceback" not in log


def _fill_descriptors(context: Context) -> tuple[int, int]:
    """Leave no free descriptor; the limit as it was."""
    was = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))  # noqa: PTH208 - numbers
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, was[1]))
    context.kept["fill"] = []
    with contextlib.suppress(OSError):
        while True:
            context.kept["fill"].append(os.open("/dev/null", os.O_RDONLY))
    return was


def _unlimited(context: Context, was: tuple[int, int]) -> None:
    for descriptor in context.kept.pop("fill"):
        os.close(descriptor)
    resource.setrlimit(resource.RLIMIT_NOFILE, was)


def _cpu_seconds(pid: int, thread: int) -> float:
    """CPU time of a thread so far."""
    fields = Path(f"/proc/{pid}/task/{thread}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_without_a_free_descriptor_the_hub_does_not_spin(scene: Scene) -> None:
    workers = scene.workers(2)
    scene.join(WORLD, workers)
    at = member(scene, WORLD, 1)
    started = time.monotonic()
    hub = workers[0].pid, workers[0].run(acts.thread_id, "mw-hub")
    was = workers[0].run(_fill_descriptors)
    with at.connect():
        before = _cpu_seconds(*hub)
        time.sleep(1.0)  # what is measured is how busy it is for that long
        spent = _cpu_seconds(*hub) - before
        workers[0].run(_unlimited, was)
    scene.injector.record("no descriptors", workers[0].name, started, "limit lowered to what is open")
    assert spent < 0.2, f"the hub took {spent:.2f} s of CPU in a second"
    assert ask(at)["ok"] is False  # it accepts again
    scene.works(WORLD, workers)
