"""Worlds that are kept: they come back where the program allows it, and are given up one by one."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from procs import Done, cluster, program, wait_until
from table import members

from multiworld import (
    AttemptFailed,
    Backoff,
    BrokenWorldException,
    Draining,
    GaveUp,
    InvalidArgument,
    MultiWorld,
    PeerLost,
    RendezvousError,
    Supervisor,
    Want,
    WorldClosed,
    WorldGivenUp,
    WrongContext,
)
from multiworld.lab.context import Context
from multiworld.lab.workers import Worker
from multiworld.liveness.neighbour import Presence
from multiworld.rendezvous import joining
from multiworld.rendezvous.ledger import Ledger

SECONDS = 30.0
SOON = Backoff(first=0.01, longest=0.02, failures=3)


def want(store: str, rank: int = 0, size: int = 1, **fields: Any) -> Want:
    return Want(store=store, rank=rank, size=size, **fields)


@contextlib.contextmanager
def kept(*tables: dict[str, Want], backoff: Backoff | None = None) -> Iterator[list[tuple[MultiWorld, Supervisor]]]:
    """Supervisors of several ``MultiWorld`` in this process."""
    with contextlib.ExitStack() as stack:
        homes = [stack.enter_context(MultiWorld()) for _ in tables]
        yield [
            (mw, stack.enter_context(mw.maintain(table, backoff=backoff)))
            for mw, table in zip(homes, tables, strict=True)
        ]


def both(store: str) -> list[dict[str, Want]]:
    return [{"w": want(store, rank, 2)} for rank in range(2)]


def total(*supervisors: Supervisor) -> float:
    """The sum that all members of ``w`` get, each a part of 1."""
    tensors = [torch.ones(1) for _ in supervisors]
    calls = [
        threading.Thread(target=sup["w"].sync.all_reduce, args=(tensor,))
        for sup, tensor in zip(supervisors, tensors, strict=True)
    ]
    for call in calls:
        call.start()
    for call in calls:
        call.join(SECONDS)
    return float(tensors[0])


def test_a_broken_world_comes_back_at_reconcile_and_not_before(store: str) -> None:
    with kept(*both(store)) as ((mw, one), (_, other)):
        one.wait_ready(SECONDS)
        other.wait_ready(SECONDS)
        assert one.reconcile() == (), "what is whole is left alone"
        world = one["w"]
        other["w"].abort("on purpose")
        wait_until(lambda: not one.ready and not other.ready, SECONDS, "the break was not noticed")
        with pytest.raises(RendezvousError, match="call reconcile"):
            one.wait_ready(SECONDS)
        assert other.reconcile() == ("w",)
        # The other one waits in the next generation, and we do not go there.
        wait_until(lambda: mw.sync.list(store)[0].generation == 2, SECONDS, "the other one does not come back")
        with pytest.raises(AssertionError, match="stays away"):  # what does not happen can only be waited for
            wait_until(lambda: one.ready or other.ready, 0.5, "it stays away")
        with pytest.raises(PeerLost):
            world.sync.barrier()
        one.reconcile()
        one.wait_ready(SECONDS)
        other.wait_ready(SECONDS)
        assert one["w"] is world
        assert world.generation == 2
        assert total(one, other) == 2


def _member(context: Context, store: str, rank: int, size: int, grow: bool = False, **fields: Any) -> Any:
    """Reduce until told to end, and go on after losses. Each generation is marked once: a full pipe would hold us."""
    marked = 0
    with MultiWorld() as mw, mw.maintain({"w": want(store, rank, size, join_timeout=SECONDS, **fields)}) as sup:
        sup.wait_ready(SECONDS)
        while not sup.draining:
            tensor = torch.ones(1)
            try:
                sup["w"].sync.all_reduce(tensor)
                if marked != sup["w"].generation:
                    marked = sup["w"].generation
                    context.mark("reduced", (marked, float(tensor)))
                if grow:
                    sup["w"].sync.grow()
            except BrokenWorldException:
                sup.reconcile()
                sup.wait_ready(SECONDS)
        return sup["w"].generation


def _shrinking(context: Context, store: str, rank: int) -> Any:
    return _member(context, store, rank, 3, on_loss="shrink", min_size=2)


def test_a_killed_member_is_gone_on_without(tcp_store: str) -> None:
    with cluster() as c:
        members = [c.start(_shrinking, tcp_store, rank) for rank in range(3)]
        for member in members:
            assert member.wait_for("reduced").value == (1, 3)
        victim = members.pop(1)
        victim.kill()
        c.procs.remove(victim)
        for member in members:
            assert member.wait_for("reduced").value == (2, 2)
        for member in members:
            member.signal(signal.SIGTERM)
        assert c.results() == [2, 2]


def _shrinking_and_growing(context: Context, store: str, rank: int) -> Any:
    return _member(context, store, rank, 3, grow=True, on_loss="shrink", min_size=2)


def test_who_is_gone_on_without_comes_back_as_a_newcomer(tcp_store: str) -> None:
    """The replacement runs the same program with the same rank, whether the others have noticed the loss or not."""
    with cluster() as c:
        members = [c.start(_shrinking_and_growing, tcp_store, rank) for rank in range(3)]
        for member in members:
            assert member.wait_for("reduced").value == (1, 3)
        generation = 1
        for rank in range(2):
            victim = members.pop(0)
            victim.kill()
            c.procs.remove(victim)
            members.append(c.start(_shrinking_and_growing, tcp_store, rank))
            for size, reduces in ((2, members[:2]), (3, members)):
                generation = _later(reduces, size, generation)
        for member in members:
            member.signal(signal.SIGTERM)
        assert c.results() == [generation] * 3


def _later(members: list[Worker], size: int, generation: int) -> int:
    """The generation after this one in which all have reduced; a newcomer whom a dead member delays uses up one."""
    reduced = {member.wait_for("reduced").value for member in members}
    assert len(reduced) == 1, reduced
    ((later, total),) = reduced
    assert (later > generation, total) == (True, size)
    return int(later)


def test_where_nobody_is_left_it_begins_anew(tcp_store: str) -> None:
    with cluster() as c:
        members = [c.start(_shrinking, tcp_store, rank) for rank in range(3)]
        for member in members:
            assert member.wait_for("reduced").value == (1, 3)
        for left in (members[1:], []):
            for member in tuple(c.procs):
                if member not in left:
                    member.kill()
                    c.procs.remove(member)
            for member in left:
                assert member.wait_for("reduced").value == (2, 2)
        anew = [c.start(_shrinking, tcp_store, rank) for rank in range(3)]
        back = {member.wait_for("reduced").value for member in anew}
        assert [total for _, total in back] == [3], back
        for member in anew:
            member.signal(signal.SIGTERM)
        c.results()


def _all_or_none(context: Context, store: str, rank: int) -> Any:
    return _member(context, store, rank, 3, on_loss="shrink", min_size=3)


def test_where_too_few_are_left_they_wait_for_a_replacement(tcp_store: str) -> None:
    with cluster() as c:
        first, second, victim = (c.start(_all_or_none, tcp_store, rank) for rank in range(3))
        for member in (first, second, victim):
            assert member.wait_for("reduced").value == (1, 3)
        victim.kill()
        c.procs.remove(victim)
        replacement = c.start(_all_or_none, tcp_store, 2)
        back = {member.wait_for("reduced").value for member in (first, second, replacement)}
        assert {total for _, total in back} == {3}, back
        for member in (first, second, replacement):
            member.signal(signal.SIGTERM)
        assert set(c.results()) == {generation for generation, _ in back}


def test_a_killed_member_is_replaced_and_sigterm_ends_the_others_in_good_order(tcp_store: str) -> None:
    with cluster() as c:
        first, second, victim = (c.start(_member, tcp_store, rank, 3) for rank in range(3))
        for member in (first, second, victim):
            assert member.wait_for("reduced").value == (1, 3)
        victim.kill()
        c.procs.remove(victim)
        replacement = c.start(_member, tcp_store, 2, 3)
        for member in (first, second, replacement):
            assert member.wait_for("reduced").value == (2, 3)
        for member in (first, second, replacement):
            member.signal(signal.SIGTERM)
        assert c.results() == [2, 2, 2]


def test_a_member_that_leaves_is_replaced_at_reconcile(store: str) -> None:
    with kept(*both(store)) as ((_, one), (_, other)):
        one.wait_ready(SECONDS)
        other.wait_ready(SECONDS)
        other["w"].sync.leave()
        wait_until(lambda: not one.ready, SECONDS, "the departure was not noticed")
        one.reconcile()
        other.reconcile()
        one.wait_ready(SECONDS)
        assert one["w"].generation == 2


def test_a_break_while_the_return_is_told_is_not_forgotten(store: str) -> None:
    told, go_on = threading.Event(), threading.Event()

    def slow(event: Any) -> None:
        if event.generation == 2 and type(event).__name__ == "WorldJoined":
            told.set()
            go_on.wait(SECONDS)

    with kept({"w": want(store)}) as ((mw, sup),):
        sup.wait_ready(SECONDS)
        mw.subscribe(slow)
        sup["w"].abort("on purpose")
        sup.reconcile()
        assert told.wait(SECONDS)
        wait_until(lambda: sup.ready, SECONDS, "it is not back")  # before the supervisor knows: that waits for ``slow``
        sup["w"].abort("at once again")
        sup.reconcile()
        go_on.set()
        sup.wait_ready(SECONDS)
        assert sup["w"].generation == 3


def _host(context: Context) -> None:
    with MultiWorld() as mw:
        context.send(str(mw.serve_store()))
        threading.Event().wait()


def test_a_store_that_dies_costs_its_world_alone(store: str) -> None:
    with cluster() as c:
        host = c.start(_host)
        gone = host.recv()
        table = {"gone": want(gone, join_timeout=0.5), "stays": want(store)}
        with kept(table, backoff=SOON) as ((mw, sup),):
            seen: list[Any] = []
            mw.subscribe(seen.append)
            sup.wait_ready(SECONDS)
            host.kill()
            sup["gone"].sync.barrier()  # it needs no store
            sup["gone"].abort("on purpose")
            sup.reconcile()
            with pytest.raises(GaveUp, match="3 failures") as given_up:
                sup.wait_ready(SECONDS)
            assert given_up.value.failures == 3
            assert isinstance(given_up.value.__cause__, RendezvousError)
            with pytest.raises(GaveUp):
                sup["gone"]
            sup["stays"].sync.barrier()
            assert sup["stays"].generation == 1
            wait_until(lambda: any(isinstance(e, WorldGivenUp) for e in seen), SECONDS, "no event of it")
            failed = [event for event in seen if isinstance(event, AttemptFailed)]
            assert [type(event.failure) for event in failed] == [RendezvousError]  # of three: a break, this, the end
            states = {world["name"]: (world["state"], world["ready"]) for world in sup.status()["worlds"]}
            assert states == {"gone": ("given up", False), "stays": ("active", True)}
            sup.apply({"gone": want(store), "stays": want(store)})  # begins anew
            sup.wait_ready(SECONDS)
            assert sup["gone"].generation == 1


def test_a_world_that_breaks_too_often_is_given_up(store: str) -> None:
    with kept({"w": want(store)}, backoff=SOON) as ((_, sup),):
        for generation in (1, 2):
            sup.wait_ready(SECONDS)
            assert sup["w"].generation == generation
            sup["w"].abort("again")
            sup.reconcile()
        sup.wait_ready(SECONDS)
        sup["w"].abort("too often")
        sup.reconcile()
        with pytest.raises(GaveUp):
            sup.wait_ready(SECONDS)


def test_pauses_have_full_jitter() -> None:
    backoff = Backoff(first=1.0, longest=5.0)
    for attempt, limit in ((0, 1.0), (1, 2.0), (2, 4.0), (3, 5.0), (10_000, 5.0)):
        drawn = [backoff.pause(attempt) for _ in range(300)]
        assert 0 <= min(drawn) < limit / 10
        assert limit * 0.9 < max(drawn) <= limit


def test_another_table(store: str) -> None:
    with kept(*both(store)) as ((mw, one), (_, other)):
        one.wait_ready(SECONDS)
        other.wait_ready(SECONDS)
        other.apply({})
        assert other.ready, "what is there stays until reconcile"
        other.reconcile()
        wait_until(lambda: not one.ready, SECONDS, "the other one has not left")
        one.apply({"w": want(store, 0, 1), "new": want(store)})
        wait_until(lambda: "new" in mw.worlds, SECONDS, "a new world does not begin")
        world = one["w"]
        assert world.size == 2
        one.reconcile()
        one.wait_ready(SECONDS)
        assert (one["w"], world.size, world.generation) == (world, 1, 2)
        one.apply({"w": want(store + "2")})
        one.reconcile()
        one.wait_ready(SECONDS)
        assert one["w"] is not world
        assert list(mw.worlds) == ["w"]


@pytest.mark.parametrize(
    "table",
    [
        {"w": Want(rank=2, size=2, store="file:///x")},
        {"w": Want(rank="0", size=2, store="file:///x")},  # type: ignore[arg-type]
        {"w": Want(rank=0, size=2, store="nowhere")},
        {"w": Want(rank=0, size=2, store="file:///x", min_size=1)},
        {"w": Want(rank=0, size=2, store="file:///x", min_size=3, on_loss="shrink")},
        {"w": Want(rank=0, size=2, store="file:///x", min_size=0, on_loss="shrink")},
        {"w": Want(rank=0, size=2, store="file:///x", on_loss="weep")},  # type: ignore[arg-type]
        {"w": Want(rank=0, size=2, store="file:///x", join_timeout=0)},
        {"w": {"rank": 0, "size": 1}},
        {5: Want(rank=0, size=1, store="file:///x")},
        [],
        None,
    ],
    ids=str,
)
def test_a_table_that_cannot_be_right_changes_nothing(store: str, table: Any) -> None:
    with kept({"good": want(store)}) as ((mw, sup),):
        sup.wait_ready(SECONDS)
        threads = threading.active_count()
        for refuses in (mw.maintain, sup.apply):
            with pytest.raises(InvalidArgument):
                refuses(table if not isinstance(table, dict) else {"new": want(store), **table})
        sup.reconcile()
        assert threading.active_count() <= threads
        assert list(mw.worlds) == ["good"]
        assert sup.ready


def test_a_world_has_one_supervisor(store: str) -> None:
    with kept({"w": want(store)}) as ((mw, sup),), MultiWorld() as elsewhere:
        sup.wait_ready(SECONDS)
        elsewhere.sync.join("joined", 0, 1, store=store)
        for home, table in (
            (mw, {"w": want(store)}),
            (mw, {"w": want(store + "2")}),
            (elsewhere, {"w": want(store)}),
            (elsewhere, {"joined": want(store)}),
        ):
            with pytest.raises(InvalidArgument, match="in this process already"):
                home.maintain({"other": want(store), **table})
        sup["w"].sync.barrier()
        sup.close()
        sup["w"].sync.leave()
        with elsewhere.maintain({"w": want(store)}) as again:
            again.wait_ready(SECONDS)
        with pytest.raises(WorldClosed):
            sup.reconcile()


def test_wrong_values() -> None:
    for fields in ({"first": 0}, {"failures": 0}, {"failures": 1.5}, {"within": "long"}):
        with pytest.raises(InvalidArgument):
            Backoff(**fields)  # type: ignore[arg-type]
    with MultiWorld() as mw, pytest.raises(InvalidArgument):
        mw.maintain({}, backoff=5)  # type: ignore[arg-type]
    with MultiWorld() as mw, mw.maintain({}) as sup:
        with pytest.raises(InvalidArgument, match="no such world"):
            sup["w"]
        assert sup.ready


def test_what_is_late_says_why(store: str) -> None:
    with kept({"w": want(store, 0, 2)}) as ((_, sup),):
        with pytest.raises(RendezvousError, match=r"not ready within 0\.1 s"):
            sup.wait_ready(0.1)
        with pytest.raises(RendezvousError, match="not joined yet"):
            sup["w"]
        assert json.loads(json.dumps(sup.status()))["worlds"][0]["state"] == "joining"


def test_in_an_event_loop(store: str) -> None:
    async def main() -> list[str]:
        async with MultiWorld() as mw:
            sup = mw.maintain({"w": want(store)})
            events = sup.events()
            with pytest.raises(WrongContext):
                sup.wait_ready(SECONDS)
            await asyncio.to_thread(sup.wait_ready, SECONDS)
            await sup["w"].barrier()
            sup["w"].abort("on purpose")
            sup.reconcile()
            await asyncio.to_thread(sup.wait_ready, SECONDS)
            await sup["w"].barrier()
            sup.drain()
            seen = []
            async for event in events:
                seen.append(type(event).__name__)
                if isinstance(event, Draining):
                    return seen
            raise AssertionError

    seen = asyncio.run(asyncio.wait_for(main(), SECONDS))
    assert seen == ["WorldJoined", "WorldBroken", "WorldJoined", "Draining"]


def test_who_drains_assembles_nothing(store: str) -> None:
    with kept({"w": want(store)}) as ((mw, sup),):
        sup.wait_ready(SECONDS)
        assert mw.status()["ready"]
        sup.drain()
        assert sup.draining
        assert not sup.ready
        assert not mw.status()["ready"]
        sup["w"].sync.barrier()  # what is under way is finished
        sup["w"].abort("on purpose")
        sup.reconcile()
        sup.apply({"new": want(store)})
        assert not sup.wait_ready(SECONDS)
        assert list(mw.worlds) == ["w"]
        assert sup["w"].generation == 1


SIGTERM = """
import os, signal, sys, threading
from multiworld import MultiWorld, Want
def before(number, frame): print("before", flush=True)
if sys.argv[2] == "handler":
    signal.signal(signal.SIGTERM, before)
with MultiWorld() as mw, mw.maintain({"w": Want(store=sys.argv[1], rank=0, size=2)}) as sup:
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
    if not sup.wait_ready(60):
        print("drains", flush=True)
    if sys.argv[2] == "twice":
        os.kill(os.getpid(), signal.SIGTERM)
if sys.argv[2] == "after":
    with MultiWorld() as mw:
        sup = mw.maintain({})
        thread = threading.Thread(target=sup.close)  # which cannot put the handler back
        thread.start()
        thread.join()
        os.kill(os.getpid(), signal.SIGTERM)
print("ended", flush=True)
"""


@pytest.mark.parametrize(
    ("case", "status", "said"),
    [
        ("alone", 0, "drains ended"),
        ("handler", 0, "before drains ended"),
        ("twice", -signal.SIGTERM, "drains"),
        ("after", -signal.SIGTERM, "drains"),
    ],
)
def test_sigterm(store: str, case: str, status: int, said: str) -> None:
    done = program(SIGTERM, store, case)
    assert (done.status, done.stdout.split()) == (status, said.split()), done.stderr


ENDS = """
import sys, threading
from multiworld import MultiWorld, Want
mw = MultiWorld()
sup = mw.maintain({"w": Want(store=sys.argv[1], rank=0, size=2), "here": Want(store=sys.argv[1], rank=0, size=1)})
threading.Thread(target=sup.wait_ready, daemon=True).start()
print("ends", flush=True)
"""


def test_a_program_that_ends_without_closing(store: str) -> None:
    done: Done = program(ENDS, store)
    assert (done.status, done.stdout) == (0, "ends\n"), done.stderr
    assert "Fatal" not in done.stderr


def test_closing_the_multiworld_ends_its_supervisors(store: str) -> None:
    mw = MultiWorld()
    sup = mw.maintain({"w": want(store, 0, 2)})
    waits = threading.Event()

    def wait() -> None:
        waits.set()
        with pytest.raises(WorldClosed):
            sup.wait_ready()

    waiting = threading.Thread(target=wait)
    waiting.start()
    assert waits.wait(SECONDS)
    mw.sync.close()
    waiting.join(SECONDS)
    assert not waiting.is_alive()
    assert "mw-keep" not in [thread.name for thread in threading.enumerate()]


def test_who_reaches_no_member_at_first_comes_to_the_door_later(store: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reaches the store alone, and opens a generation that nobody else comes to."""
    ledger = Ledger(dist.FileStore(store.removeprefix("file://"), -1), "w")
    with members(store, 3) as (worlds, pool), MultiWorld() as mw:
        left, lost = worlds[:2], worlds[2]
        lost.abort("on purpose")
        lost.sync.leave()
        wait_until(lambda: all(world.failure for world in left), SECONDS, "it is not broken")
        assert [world.size for world in pool.map(lambda world: world.sync.shrink(timeout=SECONDS), left)] == [2, 2]
        with monkeypatch.context() as cut:
            cut.setattr(joining, "presence", lambda *_, **__: Presence.GONE)
            sup = mw.maintain({"w": want(store, 2, 3, on_loss="shrink", min_size=2, join_timeout=SECONDS)})
            wait_until(lambda: ledger.claimed(3, 2) is not None, SECONDS, "it opens no generation")
        wait_until(lambda: all(world.pending for world in left), SECONDS, "it does not come to the door")
        assert list(pool.map(lambda world: world.sync.grow(timeout=SECONDS), left)) == left
        sup.wait_ready(SECONDS)
        assert {sup["w"].size, *(world.size for world in left)} == {3}
