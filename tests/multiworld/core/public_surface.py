"""A program that names everything public: strictly typed, and run as the only member of its world.

Run it as ``python public_surface.py STORE FOLDER``. ``test_types.py`` checks it with ``mypy --strict`` and runs it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import sys
from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist

import multiworld
from multiworld import (
    P2P,
    AttemptFailed,
    BackendFailed,
    BackendUnavailable,
    Backoff,
    BrokenWorldException,
    DescriptorsExhausted,
    DeviceFailed,
    DeviceLost,
    Draining,
    Event,
    FileStorePath,
    GaveUp,
    Group,
    Heartbeat,
    InvalidArgument,
    ListedMember,
    ListedWorld,
    LossReason,
    MultiWorld,
    MultiWorldError,
    ObjectRefused,
    OpTimeout,
    OwnStall,
    PeerLeft,
    PeerLost,
    PeerRecovered,
    PeerSuspected,
    RendezvousError,
    StaleGeneration,
    Supervisor,
    TcpStoreAddress,
    TensorMismatch,
    Want,
    World,
    WorldBroken,
    WorldClosed,
    WorldConfig,
    WorldGivenUp,
    WorldJoined,
    WorldLeft,
    WorldMember,
    WorldState,
    WrongContext,
)
from multiworld.communicator import MismatchInWorld, WorldCommunicator
from multiworld.manager import WorldManager
from multiworld.observe.endpoint import Endpoint
from multiworld.observe.json_log import JsonLog
from multiworld.observe.metrics import Metrics
from multiworld.observe.status_file import StatusFile
from multiworld.watchdog import WatchDog


def told(event: Event) -> str:
    """Read every attribute of every event."""
    about: tuple[str, int, int, float, float] = (event.world, event.generation, event.rank, event.at, event.monotonic)
    if isinstance(event, WorldJoined):
        return f"{about} {event.size} {event.seconds:.3f}"
    if isinstance(event, PeerSuspected | PeerRecovered):
        return f"{about} {event.peer} {event.silence:.3f}"
    if isinstance(event, WorldBroken | DeviceLost | WorldGivenUp | AttemptFailed):
        after = event.after if isinstance(event, AttemptFailed) else 0.0
        return f"{about} {caught(event.failure)} {event.device if isinstance(event, DeviceLost) else ''} {after:.3f}"
    if isinstance(event, OwnStall):
        return f"{about} {event.gap:.3f}"
    return f"{about} {event.peer if isinstance(event, PeerLeft) else isinstance(event, WorldLeft | Draining)}"


def caught(error: MultiWorldError) -> str:
    """Read every attribute of every error."""
    where: tuple[str | None, int | None, int | None, str | None] = (
        error.world,
        error.generation,
        error.rank,
        error.operation,
    )
    text: str = f"{where} {error.what} {error.cause} {error.remedy} {error.where}"
    if isinstance(error, PeerLost):
        lost: tuple[int, ...] = error.ranks
        return f"{text} {lost} {error.how is LossReason.LEFT}"
    if isinstance(error, DeviceFailed):
        return f"{text} {error.device} {error.code:d}"
    if isinstance(error, OpTimeout):
        return f"{text} {error.timeout:.1f}"
    if isinstance(error, TensorMismatch):
        theirs: Mapping[int, str] = error.theirs
        return f"{text} {error.ours} {theirs} {isinstance(error, MismatchInWorld)}"
    if isinstance(error, GaveUp):
        return f"{text} {error.failures:d}"
    if isinstance(error, StaleGeneration):
        return f"{text} {error.current}"
    if isinstance(error, DescriptorsExhausted):
        return f"{text} {error.limit:d} {error.need:d}"
    rest = BackendFailed, BackendUnavailable, InvalidArgument, ObjectRefused, RendezvousError, WorldClosed, WrongContext
    return f"{text} {isinstance(error, rest)} {isinstance(error, BrokenWorldException)}"


def described(world: World) -> tuple[object, ...]:
    """Read every attribute of a world."""
    config: WorldConfig = world.config
    state: WorldState = world.state
    departed: frozenset[int] = world.departed
    limit: int = config.max_message_bytes
    ranks: tuple[int, ...] = world.ranks
    place: tuple[str, int, int, int, int] = world.name, world.rank, world.world_rank, world.size, world.generation
    return place, state, departed, limit, ranks, world.failure, world.on_device, world.device, world.tally


async def collectives(group: Group) -> None:
    """Await every collective."""
    one, into = torch.ones(4), torch.zeros(4)
    await group.broadcast(one, 0)
    await group.all_reduce(one)
    await group.all_reduce(one, dist.ReduceOp.MAX, stream=True, timeout=5.0)
    await group.reduce(one, 0, dist.ReduceOp.MIN)
    await group.all_gather([into], one)
    await group.all_gather_into_tensor(into, one)
    await group.gather(one, [into], dst=0)
    await group.scatter(into, [one], src=0)
    await group.reduce_scatter(into, [one], dist.ReduceOp.SUM)
    await group.reduce_scatter_tensor(into, one, op=dist.ReduceOp.PRODUCT)
    await group.all_to_all([into], [one])
    await group.all_to_all_single(into, one, [4], [4])
    await group.barrier(timeout=math.inf)
    await group.monitored_barrier()
    gathered: list[Any] = await group.all_gather_object("it")
    collected: list[Any] | None = await group.gather_object("it", dst=0)
    assert gathered == collected == ["it"]
    assert await group.broadcast_object("it", 0, allow=[dict]) == await group.scatter_object(["it"]) == "it"


def collectives_sync(group: Group) -> None:
    """Call every synchronous twin of a collective."""
    one, into, sync = torch.ones(4), torch.zeros(4), group.sync
    sync.broadcast(one, 0)
    sync.all_reduce(one, dist.ReduceOp.MAX)
    sync.reduce(one, 0, dist.ReduceOp.MIN)
    sync.all_gather([into], one)
    sync.all_gather_into_tensor(into, one)
    sync.gather(one, [into], dst=0)
    sync.scatter(into, [one], src=0)
    sync.reduce_scatter(into, [one], dist.ReduceOp.SUM)
    sync.reduce_scatter_tensor(into, one, op=dist.ReduceOp.PRODUCT)
    sync.all_to_all([into], [one])
    sync.all_to_all_single(into, one, [4], [4])
    sync.barrier()
    sync.monitored_barrier()
    assert sync.all_gather_object("it") == sync.gather_object("it", dst=0) == ["it"]
    assert sync.broadcast_object("it", 0) == sync.scatter_object(["it"]) == "it"


async def messages(group: Group, peer: int) -> int:
    """Await every operation between two members."""
    one, into = torch.ones(4), torch.zeros(4)
    await group.send(one, peer, tag=1, stream=False, timeout=5.0)
    source: int = await group.recv(into, None, tag=1)
    await group.send_tensor(one, peer)
    tensor: torch.Tensor = await group.recv_tensor(peer, device="cpu")
    await group.send_object({"a": tensor}, peer)
    await group.recv_object(peer, allow=["collections.OrderedDict"])
    sources: list[int | None] = await group.batch_p2p([P2P("send", one, peer), P2P("recv", into, peer, tag=0)])
    return source + sum(found or 0 for found in sources)


def messages_sync(group: Group, peer: int) -> int:
    """Call every synchronous twin of these."""
    one, into, sync = torch.ones(4), torch.zeros(4), group.sync
    sync.send(one, peer, tag=1)
    source: int = sync.recv(into, peer, tag=1)
    sync.send_tensor(one, peer)
    tensor: torch.Tensor = sync.recv_tensor(peer)
    sync.send_object({"a": tensor}, peer)
    sync.recv_object(peer)
    sources: list[int | None] = sync.batch_p2p([P2P("send", one, peer), P2P("recv", into, peer)])
    return source + sum(found or 0 for found in sources)


def process_groups(world: World) -> None:
    assert world.process_group.size() == 1
    assert world.process_group_as_default() is dist.group.WORLD
    for attempt in multiworld.recovering(world.process_group, range(1), sync=lambda _: None):
        with attempt as step:
            assert step == 0
    dist.destroy_process_group()


async def life(world: World) -> None:
    """Take a world through its life."""
    group: Group = world.group([0], label="alone")
    await collectives(group)
    await asyncio.to_thread(collectives_sync, world)
    await world.synchronize(timeout=5.0)
    await asyncio.to_thread(world.sync.synchronize)
    await asyncio.to_thread(process_groups, world)
    world.abort("on purpose")
    again: World = await world.rejoin(rank=0, size=1, timeout=30.0)
    assert again is await asyncio.to_thread(world.sync.rejoin, size=1)
    with contextlib.suppress(multiworld.TooFewMembers):
        await asyncio.to_thread(world.sync.shrink, min_size=2, timeout=30.0)
    assert world is await world.shrink(min_size=1) is await world.grow(timeout=5.0)
    members: tuple[WorldMember, ...] = world.members
    assert [(one.id != "", one.rank, one.old_rank) for one in members] == [(True, 0, 0)]
    assert world.pending == ()
    described(again)
    await world.leave()
    await asyncio.to_thread(world.sync.leave)


async def supervised(mw: MultiWorld, store: TcpStoreAddress) -> None:
    """Keep a world, and look at it."""
    want = Want(
        store=store,
        rank=0,
        size=1,
        min_size=None,
        on_loss="rejoin",
        backend="gloo",
        device=None,
        op_timeout=None,
        join_timeout=30.0,
        heartbeat=None,
    )
    patience = Backoff(first=0.1, longest=10.0, failures=20, within=300.0)
    sup: Supervisor = mw.maintain({"kept": want}, backoff=patience)
    with sup:
        assert await asyncio.to_thread(sup.wait_ready, 30.0)
        world: World = sup["kept"]
        assert sup.ready == (not sup.reconcile())
        sup.apply({"kept": want})
        status: list[dict[str, Any]] = [sup.status(), mw.status()]
        assert all(one["ready"] for one in status)
        events = sup.events()
        listed: tuple[ListedWorld, ...] = await mw.list(store, timeout=10.0)
        assert listed == await asyncio.to_thread(mw.sync.list, store)
        member: ListedMember = next(one for one in listed if one.name == "kept").members[0]
        place: tuple[int, str, int, float] = member.rank, member.host, member.process, member.since
        assert place[0] == world.rank
        about: list[tuple[str, int, int, bool]] = [(w.name, w.generation, w.size, w.complete) for w in listed]
        assert about
        assert patience.pause(0) <= 0.1
        drains: bool = sup.drain()
        assert drains == sup.draining
        assert isinstance(await anext(events), Draining)
        with JsonLog(mw, sys.stderr), Endpoint(mw, port=0, host="127.0.0.1", registry=None) as endpoint:
            assert endpoint.url
        sup.close()


async def main(store: str, folder: str) -> None:
    """Join in every way that there is."""
    seen: list[str] = []
    settings = MultiWorld(
        address="127.0.0.1",
        op_timeout=60.0,
        heartbeat=Heartbeat(0.2, 0.45, 0.8),
        secret=None,
        ports=None,
        interfaces=(),
    )
    async with settings as mw:
        unsubscribe = mw.subscribe(lambda event: seen.append(told(event)))
        events = mw.events()
        address: TcpStoreAddress = mw.serve_store()
        world = await mw.join(
            "typed",
            0,
            1,
            store=address,
            backend="gloo",
            device=torch.device("cpu"),
            op_timeout=30.0,
            heartbeat=Heartbeat(),
            join_timeout=30.0,
            address=None,
            resize=False,
            max_message_bytes=1 << 20,
            on_cancel="finish",
        )
        joined: int = mw.history.joins["typed"]
        assert joined == 1
        assert mw["typed"] is mw.worlds["typed"] is world
        with StatusFile(mw, folder, interval=0.5):
            await life(world)
        assert isinstance(await anext(events), WorldJoined)
        unsubscribe()
        await supervised(mw, address)
        stored = FileStorePath(f"{store}-2")
        (await asyncio.to_thread(mw.sync.join, "second", 0, 1, store=stored, max_message_bytes=1 << 20)).abort("done")
        with contextlib.suppress(BrokenWorldException):
            await mw["second"].barrier()
    await asyncio.to_thread(mw.sync.close)
    await mw.close()
    assert multiworld.__version__


def metrics(mw: MultiWorld) -> None:
    """Make and end the metrics; needs the extra."""
    made = Metrics(mw, registry=None)
    made.close()


async def compatible(manager: WorldManager, tensor: torch.Tensor) -> None:
    """Call what pymultiworld 0.2.3 has."""
    communicator: WorldCommunicator = manager.communicator
    await manager.initialize_world("old", 0, 1, backend="gloo", addr="127.0.0.1", port=29500, timeout=30)
    manager.add_world("other", "gloo")
    await communicator.send(tensor, 0, "old")
    await communicator.recv(tensor, 0, "old")
    await communicator.broadcast(tensor, 0, "old")
    await communicator.all_reduce(tensor, dist.ReduceOp.MAX, "old")
    await communicator.reduce(tensor, 0, dist.ReduceOp.SUM, "old")
    await communicator.all_gather([tensor], tensor, "old")
    await communicator.gather(tensor, [tensor], 0, "old")
    await communicator.scatter(tensor, [tensor], 0, "old")
    assert communicator.is_broken("other")
    manager.remove_world("old")
    manager.cleanup()


def watched(names: asyncio.Queue[str], worlds: MultiWorld) -> None:
    """Make and end a watchdog."""
    import queue

    dog = WatchDog(queue.Queue(), names)
    dog.watch(worlds, print)
    dog.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
