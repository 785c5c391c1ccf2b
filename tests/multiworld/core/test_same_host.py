"""Lanes to members on the same host: who gets one that is not TCP, and what a stranger can do there."""

from __future__ import annotations

import contextlib
import itertools
import logging
import os
import resource
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from procs import cluster
from table import members

from multiworld import InvalidArgument, MultiWorld
from multiworld.cli import doctor
from multiworld.cli.nccl_checks import Verdict
from multiworld.config import NetworkSettings
from multiworld.lab.context import Context
from multiworld.liveness import neighbour
from multiworld.observe.status_file import StatusFile, read_all
from multiworld.process.hub import Hub
from multiworld.rendezvous import ledger
from multiworld.rendezvous.ledger import Claim
from multiworld.transport import endpoint as endpoints
from multiworld.transport.endpoint import Endpoint
from multiworld.transport.greeting import Hello, Role
from multiworld.transport.handshake import Dialler, greet
from multiworld.transport.sockets import connected_here

SECRET = b"nobody-may-read-this"
HELLO = Hello(Role.LANE, "w", 1, 1, 0, "c0ffee")
SECONDS = 30.0


def ways(worlds: list[Any]) -> list[str]:
    """The way of each member of two to the other."""
    return [way for world in worlds for way in world.member.session.bridge.ways().values()]


def exchange(worlds: list[Any], pool: Any, count: int = 100_000) -> None:
    """Send a large tensor each way."""
    for sender, receiver in itertools.permutations(worlds):
        got = torch.zeros(count)
        receive = pool.submit(receiver.sync.recv, got, sender.rank)
        sender.sync.send(torch.ones(count), receiver.rank)
        receive.result(SECONDS)
        assert got.sum() == count


def test_members_on_one_host_share_memory(store: str) -> None:
    with members(store, 2) as (worlds, pool):
        assert ways(worlds) == ["unix", "unix"]
        for _ in range(2):
            exchange(worlds, pool)
        assert ways(worlds) == ["ring", "ring"]


def test_the_setting_turns_it_off(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIWORLD_SAME_HOST", "tcp")
    with members(store, 2) as (worlds, pool):
        exchange(worlds, pool)
        assert ways(worlds) == ["tcp", "tcp"]


def test_a_setting_that_is_none_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MULTIWORLD_SAME_HOST", "shm")
    with pytest.raises(InvalidArgument, match="MULTIWORLD_SAME_HOST is 'shm'"):
        MultiWorld()


def _of_another_host(claim: Claim) -> Claim:
    return claim._replace(machine="another-boot pid:[1] net:[1]")


def _of_another_network(claim: Claim) -> Claim:
    boot, processes, _ = neighbour.machine().split()
    return claim._replace(machine=f"{boot} {processes} net:[1]")


def _of_an_unknown_host(claim: Claim) -> Claim:
    return claim._replace(machine="")


def _of_a_name_that_is_not_here(claim: Claim) -> Claim:
    return claim._replace(local="0" * 32)


def _of_a_name_that_no_endpoint_makes(claim: Claim) -> Claim:
    return claim._replace(local="\ud800/../" + claim.local)


def _without_a_name(claim: Claim) -> Claim:
    return claim._replace(local="")


@pytest.mark.parametrize(
    "seen",
    [
        _of_another_host,
        _of_another_network,
        _of_an_unknown_host,
        _of_a_name_that_is_not_here,
        _of_a_name_that_no_endpoint_makes,
        _without_a_name,
    ],
)
def test_a_member_that_is_elsewhere_or_only_looks_local_is_reached_by_tcp(
    store: str, monkeypatch: pytest.MonkeyPatch, seen: Callable[[Claim], Claim]
) -> None:
    claims = ledger.Ledger.claims

    def read(self: ledger.Ledger, generation: int, ranks: Iterable[int]) -> dict[int, Claim]:
        return {rank: seen(claim) for rank, claim in claims(self, generation, ranks).items()}

    monkeypatch.setattr(ledger.Ledger, "claims", read)
    started = time.monotonic()
    with members(store, 2) as (worlds, pool):
        assert time.monotonic() - started < 5.0  # nobody waited for a time-out
        assert ways(worlds) == ["tcp", "tcp"]
        exchange(worlds, pool)


def test_a_process_of_another_container_is_in_another_network() -> None:
    ours = neighbour.machine()
    boot, processes, network = ours.split()
    assert neighbour.share_network(ours, f"{boot} {processes} {network}")
    assert neighbour.share_network(ours, f"{boot} pid:[1] {network}")  # a container of the same pod
    for other in (f"{boot} {processes} net:[1]", f"x {processes} {network}", "", boot, "unknown 1f"):
        assert not neighbour.share_network(ours, other)


def test_a_system_without_such_sockets_has_tcp(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(_: str) -> socket.socket:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(endpoints, "listening_here", refused)
    with members(store, 2) as (worlds, pool):
        exchange(worlds, pool)
        assert ways(worlds) == ["tcp", "tcp"]
        found = doctor._same_host()
        assert found.verdict is Verdict.NOTE
        assert "other sockets are refused" in found.found


def _member(context: Context, store: str, rank: int, environment: dict[str, str]) -> None:
    """A member in a process of its own, which tells how its data went."""
    os.environ.update(environment)
    with MultiWorld() as mw:
        world = mw.sync.join("w", rank, 2, store=store)
        data = torch.full((100_000,), float(rank))
        for _ in range(2):
            for turn in range(2):
                if turn == rank:
                    world.sync.send(data, 1 - rank)
                else:
                    world.sync.recv(data, 1 - rank)
        context.send([*world.member.session.bridge.ways().values()])
        context.recv(240)


@pytest.mark.parametrize(
    ("environment", "way"), [({}, "ring"), ({"MULTIWORLD_SAME_HOST": "tcp"}, "tcp")], ids=["by default", "off"]
)
def test_processes_on_one_host(store: str, environment: dict[str, str], way: str) -> None:
    """A member that turned it off has TCP."""
    with cluster() as c:
        processes = [c.start(_member, store, 0, {}), c.start(_member, store, 1, environment)]
        assert [process.recv() for process in processes] == [[way], [way]]


def test_nothing_is_left_of_members_that_were_killed(store: str) -> None:
    with cluster() as c:
        processes = [c.start(_member, store, rank, {}) for rank in (0, 1)]
        assert [process.recv() for process in processes] == [["ring"], ["ring"]]
        names = {name for process in processes for name in _names_of(process.pid)}
        assert len(names) == 2
        for process in processes:
            os.kill(process.pid, signal.SIGKILL)
        assert [process.exit_code(SECONDS) for process in processes] == [-signal.SIGKILL] * 2
    assert not names & set(_named_sockets().values())


def _named_sockets() -> dict[str, str]:
    """The names of endpoints, by inode."""
    lines = [line.split() for line in Path("/proc/net/unix").read_text().splitlines() if "@multiworld-" in line]
    return {fields[-2]: fields[-1] for fields in lines}


def _names_of(process: int) -> set[str]:
    """The names under which a process listens."""
    links = [str(path.readlink()) for path in Path(f"/proc/{process}/fd").iterdir()]
    return {name for inode, name in _named_sockets().items() if f"socket:[{inode}]" in links}


# strangers


@pytest.fixture
def guarded() -> Iterator[Endpoint]:
    """An endpoint with a secret, and a member that answers."""
    hub = Hub.acquire()
    made = hub.endpoint("127.0.0.1", NetworkSettings(SECRET))
    made.expect("w", 1, "c0ffee", lambda _: socket.socket.close)
    yield made
    hub.release()


def test_who_proves_the_secret_is_let_in(guarded: Endpoint) -> None:
    with connected_here(guarded.local, SECONDS) as sock:
        greet(sock, HELLO, NetworkSettings(SECRET), SECONDS)
        assert sock.recv(1) == b""  # the member took it


@pytest.mark.parametrize("secret", [None, b"another"], ids=repr)
def test_who_does_not_is_refused_and_named(
    guarded: Endpoint, secret: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    refused = pytest.raises(ConnectionError)
    with connected_here(guarded.local, SECONDS) as sock, caplog.at_level(logging.WARNING), refused:
        greet(sock, HELLO, NetworkSettings(secret), SECONDS)
    assert f"from process {os.getpid()} of user {os.getuid()} on this host" in caplog.text


def test_only_lanes_come_that_way(guarded: Endpoint) -> None:
    for role in (Role.CONTROL, Role.PULSE, Role.PROBE):
        with connected_here(guarded.local, SECONDS) as sock, pytest.raises(ConnectionError, match="comes by TCP"):
            greet(sock, replace(HELLO, role=role), NetworkSettings(SECRET), SECONDS)


def test_garbage_and_descriptors_of_strangers_are_dropped(guarded: Endpoint) -> None:
    with connected_here(guarded.local, SECONDS) as sock, contextlib.suppress(ConnectionResetError):
        sock.sendall(b"\xff" * 5000)
        assert sock.recv(1) == b""
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    with connected_here(guarded.local, SECONDS) as sock:
        socket.send_fds(sock, [Dialler(HELLO, SECRET).begin()], [0, 1, 2])
        assert b"challenge" in sock.recv(4096)
        assert len(os.listdir("/proc/self/fd")) <= before + 2  # noqa: PTH208 - both ends of this one


def test_nobody_else_can_have_the_name_of_an_endpoint(guarded: Endpoint) -> None:
    with socket.socket(socket.AF_UNIX) as squatter, pytest.raises(OSError, match="in use"):
        squatter.bind(f"\0multiworld-{guarded.local}")


# what people see


def test_top_says_how_data_goes(store: str, tmp_path: Path) -> None:
    with MultiWorld() as one, MultiWorld() as other, ThreadPoolExecutor(2) as pool:
        joins = [pool.submit(mw.sync.join, "w", rank, 2, store=store) for rank, mw in enumerate((one, other))]
        worlds = [join.result(SECONDS) for join in joins]
        for _ in range(2):
            exchange(worlds, pool)
        with StatusFile(one, tmp_path):
            ((status,),) = (found.worlds for found in read_all(tmp_path))
    assert status.lanes == "1 ring"


def _how_data_goes(context: Context, environment: dict[str, str], has_memory: bool) -> str:
    """What doctor finds; without memory, what is shared can be no longer than this."""
    os.environ.update(environment)
    if not has_memory:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
    return doctor._same_host().found


@pytest.mark.parametrize(
    ("environment", "has_memory", "found"),
    [
        ({}, True, "sockets without TCP, and shared memory for what is large"),
        ({}, False, "sockets without TCP, and no shared memory: File too large"),
        ({"MULTIWORLD_SAME_HOST": "tcp"}, True, "TCP between members on one host: MULTIWORLD_SAME_HOST says so"),
    ],
    ids=["ring", "no memory", "off"],
)
def test_doctor_says_how_data_goes(environment: dict[str, str], has_memory: bool, found: str) -> None:
    with cluster() as c:
        assert c.start(_how_data_goes, environment, has_memory).result() == found
