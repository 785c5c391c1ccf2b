"""Shrink and grow as callers see them: groups and process groups afterwards, refusals, strangers at the door."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from procs import open_numbers, wait_until
from table import OP_TIMEOUT, members

from multiworld import BrokenWorldException, InvalidArgument, MultiWorld, RendezvousError, TooFewMembers, World
from multiworld.process.join_threads import Pause
from multiworld.rendezvous import reassembly
from multiworld.rendezvous.agreement import Agreement
from multiworld.rendezvous.ledger import Claim
from multiworld.rendezvous.reassembly import LEADER_PAUSE
from multiworld.rendezvous.renewal import Kept
from multiworld.rendezvous.wiring import dial
from multiworld.transport.greeting import Hello, Role

SOON = 60.0
SECRET = "another"  # noqa: S105 - of a test


def _total(group: Any) -> float:
    tensor = torch.ones(3)
    group.sync.all_reduce(tensor)
    return float(tensor[0])


def _reduced(pg: Any) -> float:
    tensor = torch.ones(3)
    dist.all_reduce(tensor, group=pg)
    return float(tensor[0])


@pytest.fixture
def newcomer() -> Iterator[MultiWorld]:
    with MultiWorld() as mw:
        yield mw


def _leaves(world: World, others: list[World]) -> None:
    rank = world.world_rank
    world.sync.leave()
    wait_until(lambda: all(rank in other.departed for other in others), SOON, "it has not left")


def test_groups_and_process_groups_go_on(store: str, newcomer: MultiWorld) -> None:
    """One object, with the new ranks and size; a group has those of its members that are left."""
    with members(store, 4) as (worlds, pool):
        left = [worlds[0], worlds[2], worlds[3]]
        groups, pgs = [world.group([3, 0]) for world in (left[0], left[2])], [world.process_group for world in left]
        _leaves(worlds[1], left)
        assert list(pool.map(lambda world: world.sync.shrink(timeout=SOON), left)) == left
        assert [(pg.rank(), pg.size(), pg.generation) for pg in pgs] == [(0, 3, 2), (1, 3, 2), (2, 3, 2)]
        assert list(pool.map(_reduced, pgs)) == [3.0] * 3
        assert dist.get_process_group_ranks(pgs[0]) == [0, 1, 2]
        assert [group.ranks for group in groups] == [(2, 0)] * 2
        assert list(pool.map(_total, groups)) == [2.0] * 2
        with pytest.raises(InvalidArgument, match="have the same number"):
            list(pool.map(lambda world: world.group([3, 0]), [_grown(pool, left, newcomer, store)]))
        assert [(pg.rank(), pg.size()) for pg in pgs] == [(0, 4), (1, 4), (2, 4)]
        assert list(pool.map(_reduced, [*pgs, newcomer["w"].process_group])) == [4.0] * 4


def _grown(pool: ThreadPoolExecutor, worlds: list[World], newcomer: MultiWorld, store: str) -> World:
    entering = pool.submit(newcomer.sync.join, "w", store=store, grow=True)
    wait_until(lambda: all(len(world.pending) == 1 for world in worlds), SOON, "nobody waits")
    assert list(pool.map(lambda world: world.sync.grow(timeout=SOON), worlds)) == worlds
    assert entering.result(SOON).members == newcomer["w"].members
    return worlds[0]


def _connections(world: World) -> dict[str, int]:
    """Which control connection leads to which member."""
    session = world.member.session
    return {session.claims[peer].identity: sock.fileno() for peer, sock in session.control._lines.socks.items()}


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between looks at the store, as they are made."""
    made: list[float] = []

    def pause(seconds: float, *, urgent: bool = False) -> Pause:
        made.append(seconds)
        return Pause(seconds, urgent)

    monkeypatch.setattr(reassembly, "Pause", pause)
    return made


def test_who_waits_is_told_by_a_store_that_can(tcp_store: str, pauses: list[float]) -> None:
    with members(tcp_store, 3) as (worlds, pool):
        _leaves(worlds[2], worlds[:2])
        first = pool.submit(worlds[0].sync.shrink, timeout=SOON)
        assert worlds[1].sync.shrink(timeout=SOON) is worlds[1]
        assert first.result(SOON) is worlds[0]
    assert pauses == []


def test_who_waits_for_a_late_member_looks_less_and_less(store: str, pauses: list[float]) -> None:
    """All share the store, and the late one may compute for long."""
    with members(store, 3) as (worlds, pool):
        _leaves(worlds[2], worlds[:2])
        first = pool.submit(worlds[0].sync.shrink, timeout=SOON)
        wait_until(lambda: LEADER_PAUSE in pauses, SOON, "it looks as often as at first")
        assert worlds[1].sync.shrink(timeout=SOON) is worlds[1]
        assert first.result(SOON) is worlds[0]


@pytest.mark.parametrize("again", ["shrink", "rejoin"])
@pytest.mark.parametrize("how", ["all", "one closes", "one lets one go", "one is too late"])
def test_members_keep_their_connections(store: str, monkeypatch: pytest.MonkeyPatch, again: str, how: str) -> None:
    """Those of them that both have kept; the others are made anew."""
    with members(store, 4) as (worlds, pool):
        before = list(map(_connections, worlds))
        worlds[1].abort("on purpose")
        wait_until(lambda: all(world.failure for world in worlds), SOON, "it is not broken")
        session = worlds[2].member.session
        wait_until(lambda: len(session.control._kept) == 3, SOON, "they are not kept")
        if how == "one closes":
            session.forget_kept()
        if how == "one lets one go":
            session._lanes.pick({1: 1, 3: 3})
        if how == "one is too late":  # it has said that it has kept them, and they end after that
            monkeypatch.setattr(Kept, "among", _ending(session, Kept.among))
        assert list(pool.map(lambda world: getattr(world.sync, again)(timeout=SOON), worlds)) == worlds
        after = list(map(_connections, worlds))
        if how == "all":
            assert after == before
        assert {world.generation for world in worlds} == {2} or how == "one is too late"
        assert list(pool.map(_total, worlds)) == [4.0] * 4
        _exchange(worlds, pool)


def _selectors() -> int:
    """Count those of this process: each engine has one."""
    links = (Path(f"/proc/self/fd/{number}") for number in open_numbers())
    return sum(link.is_symlink() and "eventpoll" in str(link.readlink()) for link in links)


def test_an_engine_ends_with_its_generation(store: str) -> None:
    with members(store, 3) as (worlds, pool):
        before = _selectors()
        worlds[1].abort("on purpose")
        wait_until(lambda: all(world.failure for world in worlds), SOON, "it is not broken")
        assert list(pool.map(lambda world: world.sync.shrink(timeout=SOON), worlds)) == worlds
        wait_until(lambda: _selectors() == before, SOON, "an engine is left")


def _ending(session: Any, among: Any) -> Any:
    lost = set(session.control._lines.socks.values())

    def ended(kept: Kept, claims: Any) -> Any:
        lanes, lines = among(kept, claims)
        for sock in lost.intersection(lines.socks.values()):
            sock.shutdown(socket.SHUT_RDWR)
        return lanes, lines

    return ended


def _exchange(worlds: list[World], pool: ThreadPoolExecutor) -> None:
    """Each sends to the next what only it can have sent."""

    def act(world: World) -> None:
        sent, got = torch.full((5,), float(world.rank)), torch.zeros(5)
        sending = pool.submit(world.sync.send, sent, (world.rank + 1) % world.size)
        world.sync.recv(got, (world.rank - 1) % world.size)
        sending.result(SOON)
        assert got.tolist() == [float((world.rank - 1) % world.size)] * 5

    with ThreadPoolExecutor(len(worlds)) as acting:
        list(acting.map(act, worlds))


@pytest.mark.parametrize("way", ["tcp", ""])
def test_nothing_of_a_broken_generation_reaches_the_next(store: str, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """Messages are cut at any place, on connections that go on."""
    if way:
        monkeypatch.setenv("MULTIWORLD_SAME_HOST", way)
    large = [torch.full((16_000_000,), float(rank)) for rank in range(2)]
    with members(store, 2) as (worlds, pool), ThreadPoolExecutor(4) as acting:
        control = _connections(worlds[0])
        for turn in range(8):
            calls = [acting.submit(world.sync.send, large[world.rank], 1 - world.rank) for world in worlds]
            calls += [acting.submit(world.sync.recv, torch.zeros(16_000_000), 1 - world.rank) for world in worlds]
            traffic = worlds[1].member.session.bridge.traffic
            wait_until(lambda: traffic()[0][1] > turn * 4_000_000, SOON, "nothing comes")  # noqa: B023
            worlds[turn % 2].abort("on purpose")
            assert all(isinstance(call.exception(SOON), BrokenWorldException | None) for call in calls)
            assert list(pool.map(lambda world: world.sync.shrink(timeout=SOON), worlds)) == worlds
            _exchange(worlds, pool)
            assert list(pool.map(_total, worlds)) == [2.0] * 2
        assert _connections(worlds[0]) == control


@pytest.mark.parametrize("leaver", [0, 2])
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_who_leaves_after_the_break_is_not_waited_for(
    store: str, monkeypatch: pytest.MonkeyPatch, when: str, leaver: int
) -> None:
    looked, lost = threading.Event(), Agreement.lost

    def told(self: Agreement, claim: Claim, **options: Any) -> bool:
        found = lost(self, claim, **options)
        looked.set()
        return found

    monkeypatch.setattr(Agreement, "lost", told)
    with members(store, 3) as (worlds, pool):
        left = [world for world in worlds if world.world_rank != leaver]
        left[0].abort("on purpose")
        wait_until(lambda: all(world.failure for world in worlds), SOON, "it is not broken")
        if when == "before":
            worlds[leaver].sync.leave()
        running = [pool.submit(world.sync.shrink, timeout=OP_TIMEOUT) for world in left]
        if when == "meanwhile":
            assert looked.wait(SOON)
            worlds[leaver].sync.leave()
        assert [call.result(SOON).size for call in running] == [2, 2]
        assert list(pool.map(_total, left)) == [2.0] * 2


def test_refused_while_a_mesh_refers_to_it(store: str) -> None:
    from torch.distributed.device_mesh import DeviceMesh

    with members(store, 1) as ((world,), _):
        mesh = DeviceMesh.from_group(world.process_group_as_default(), "cpu")
        for resize in (world.sync.shrink, world.sync.grow, world.process_group.shrink, world.process_group.grow):
            with pytest.raises(InvalidArgument, match="DeviceMesh"):
                resize()
        assert mesh.size() == 1
        assert _total(world) == 1.0
        dist.destroy_process_group()


def test_arguments(store: str, newcomer: MultiWorld) -> None:
    with members(store, 2) as (worlds, pool):
        for wrong in (0, True, 1.5):
            with pytest.raises(InvalidArgument, match="min_size"):
                worlds[0].sync.shrink(min_size=wrong)  # type: ignore[arg-type]
        with pytest.raises(TooFewMembers, match="2 members, and min_size is 3"):
            worlds[0].sync.shrink(min_size=3)
        for more in ({"rank": 1}, {"size": 3}, {"resize": True}):
            with pytest.raises(InvalidArgument, match="grow=True with"):
                newcomer.sync.join("w", store=store, grow=True, **more)  # type: ignore[arg-type]
        assert list(pool.map(lambda world: world.sync.grow(), worlds)) == worlds
        assert worlds[0].generation == 1
        assert list(pool.map(_total, worlds)) == [2.0] * 2


def _refused(mw: MultiWorld, store: str, **options: Any) -> str:
    with pytest.raises(RendezvousError) as caught:
        mw.sync.join("w", store=store, grow=True, join_timeout=SOON, **options)
    assert (caught.value.world, caught.value.rank) == ("w", None)
    return caught.value.what


def test_a_newcomer_with_another_torch_is_refused(
    store: str, newcomer: MultiWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    with members(store, 2) as (worlds, pool):
        monkeypatch.setattr(reassembly, "_TORCH", "1.0.0")
        assert f"the members have torch {torch.__version__}, this process 1.0.0" in _refused(newcomer, store)
        assert worlds[0].pending == ()
        assert list(pool.map(_total, worlds)) == [2.0] * 2


def test_a_newcomer_with_another_secret_is_refused(store: str) -> None:
    with members(store, 2) as (worlds, pool), MultiWorld(secret=SECRET) as stranger:
        assert "secret" in _refused(stranger, store)
        assert list(pool.map(_total, worlds)) == [2.0] * 2


def test_who_says_nothing_at_the_door_is_sent_away(store: str) -> None:
    with members(store, 2) as (worlds, pool):
        session = worlds[0].member.session
        host = session.claims[0]
        hello = Hello(Role.DOOR, "w", worlds[0].generation, incarnation=host.incarnation)
        with dial(host, hello, session.config.network, SOON) as silent:
            silent.settimeout(SOON)
            assert silent.recv(1) == b""
        assert list(pool.map(_total, worlds)) == [2.0] * 2


def test_a_member_that_reports_the_loss_of_nobody_that_there_is(store: str) -> None:
    with members(store, 3) as (worlds, pool):
        socks = worlds[2].member.session.control._lines.socks.values()
        for sock in [sock.dup() for sock in socks]:  # the others hang up at the first word
            with sock, contextlib.suppress(ConnectionError):
                sock.setblocking(True)
                sock.sendall(b'{"say": "break", "ranks": [99, 2], "how": "eof", "what": "rank 99 is lost"}\n')
        left = worlds[:2]
        wait_until(lambda: all(world.failure is not None for world in left), SOON, "it is passed over")
        worlds[2].sync.leave()
        assert list(pool.map(lambda world: world.sync.shrink(timeout=SOON), left)) == left
        assert [world.size for world in left] == [2, 2]


def test_a_refusal_that_cannot_be_read_is_an_error_of_ours() -> None:
    for said in (b"", b"[1]", b'{"what": "half', b"[" * 100_000):
        assert isinstance(reassembly._refused(said), RendezvousError)


def test_a_newcomer_where_there_is_no_world(store: str, newcomer: MultiWorld) -> None:
    with pytest.raises(RendezvousError, match="no members of the world take newcomers in"):
        newcomer.sync.join("w", store=store, grow=True, join_timeout=0.5)
