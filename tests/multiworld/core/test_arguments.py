# ruff: noqa: ARG005 - the calls of the table take the same arguments, needed or not
"""Every public argument with values that cannot be right: a typed error that says so, and the world goes on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import pytest
import torch
from procs import cluster

from multiworld import (
    P2P,
    FileStorePath,
    Heartbeat,
    InvalidArgument,
    MultiWorld,
    MultiWorldError,
    TcpStoreAddress,
    WorldState,
)
from multiworld.lab.context import Context

RANKS = (True, False, 1.0, "0", None, -1, 9, 2**80, [0], torch.tensor(0), Fraction(1))
RANKS_OR_NONE = tuple(value for value in RANKS if value is not None)
TAGS = (True, "x", None, 1.5, -1, 2**31, torch.tensor(1), [1])
TIMEOUTS = (0, -1, True, "1", float("nan"), [1], torch.tensor(1.0))
LISTS = (
    None,
    5,
    "tt",
    torch.zeros(2),
    [],
    [torch.zeros(2)] * 3,
    [torch.zeros(2), 1],
    [torch.zeros(2), None],
    {},
    iter([]),
)
TENSORS = (None, 1.0, [1.0], "t", torch.Tensor)
DEVICES = ("nowhere", 1.5, [], "meta", "cuda:99")
OPS = ("sum", None, 1, torch.zeros(2), [torch.zeros(2)] * 2)
ALLOWS = ("a.b", 5, [5], ["x"], int, None)
SPLITS = ([1], [1, 2], [-1, 3], [True, True], ["1", "1"], [1.0, 1.0], 2, "11", torch.tensor([1, 1]))

Case = tuple[str, str, tuple[Any, ...], Callable[[Any, Any, int], Any]]  # operation, argument, values, call


def t() -> torch.Tensor:
    return torch.zeros(2)


def pair() -> list[torch.Tensor]:
    return [t(), t()]


# `g` is a group or its synchronous twin, `v` the value, `o` the other rank.
CASES: tuple[Case, ...] = (
    ("send", "tensor", TENSORS, lambda g, v, o: g.send(v, o)),
    ("send", "dst", RANKS, lambda g, v, o: g.send(t(), v)),
    ("send", "tag", TAGS, lambda g, v, o: g.send(t(), o, tag=v)),
    ("recv", "tensor", TENSORS, lambda g, v, o: g.recv(v, o)),
    ("recv", "src", RANKS_OR_NONE, lambda g, v, o: g.recv(t(), v)),
    ("recv", "tag", TAGS, lambda g, v, o: g.recv(t(), o, tag=v)),
    ("recv", "tag of any source", TAGS, lambda g, v, o: g.recv(t(), tag=v)),
    ("send_tensor", "tensor", TENSORS, lambda g, v, o: g.send_tensor(v, o)),
    ("send_tensor", "dst", RANKS, lambda g, v, o: g.send_tensor(t(), v)),
    ("send_tensor", "tag", TAGS, lambda g, v, o: g.send_tensor(t(), o, tag=v)),
    ("recv_tensor", "src", RANKS, lambda g, v, o: g.recv_tensor(v)),
    ("recv_tensor", "tag", TAGS, lambda g, v, o: g.recv_tensor(o, tag=v)),
    ("recv_tensor", "device", DEVICES, lambda g, v, o: g.recv_tensor(o, device=v)),
    ("send_object", "dst", RANKS, lambda g, v, o: g.send_object(1, v)),
    ("send_object", "tag", TAGS, lambda g, v, o: g.send_object(1, o, tag=v)),
    ("recv_object", "src", RANKS, lambda g, v, o: g.recv_object(v)),
    ("recv_object", "tag", TAGS, lambda g, v, o: g.recv_object(o, tag=v)),
    ("recv_object", "allow", ALLOWS, lambda g, v, o: g.recv_object(o, allow=v)),
    ("batch_p2p", "operations", (None, 5, "send", [1], ["send"], {}), lambda g, v, o: g.batch_p2p(v)),
    ("batch_p2p", "kind", ("x", 1, None), lambda g, v, o: g.batch_p2p([P2P(v, t(), o)])),
    ("batch_p2p", "tensor", TENSORS, lambda g, v, o: g.batch_p2p([P2P("send", v, o)])),
    ("batch_p2p", "peer", RANKS, lambda g, v, o: g.batch_p2p([P2P("recv", t(), v)])),
    ("batch_p2p", "tag", TAGS, lambda g, v, o: g.batch_p2p([P2P("recv", t(), o, v)])),
    ("broadcast", "tensor", TENSORS, lambda g, v, o: g.broadcast(v, 0)),
    ("broadcast", "src", RANKS, lambda g, v, o: g.broadcast(t(), v)),
    ("all_reduce", "tensor", TENSORS, lambda g, v, o: g.all_reduce(v)),
    ("all_reduce", "op", OPS, lambda g, v, o: g.all_reduce(t(), v)),
    ("reduce", "tensor", TENSORS, lambda g, v, o: g.reduce(v, 0)),
    ("reduce", "dst", RANKS, lambda g, v, o: g.reduce(t(), v)),
    ("reduce", "op", OPS, lambda g, v, o: g.reduce(t(), 0, v)),
    ("all_gather", "tensors", LISTS, lambda g, v, o: g.all_gather(v, t())),
    ("all_gather", "tensor", TENSORS, lambda g, v, o: g.all_gather(pair(), v)),
    ("all_gather_into_tensor", "output", TENSORS, lambda g, v, o: g.all_gather_into_tensor(v, t())),
    ("all_gather_into_tensor", "tensor", TENSORS, lambda g, v, o: g.all_gather_into_tensor(torch.zeros(4), v)),
    ("gather", "tensor", TENSORS, lambda g, v, o: g.gather(v, None, o)),
    ("gather", "gather_list", LISTS, lambda g, v, o: g.gather(t(), v, 1 - o)),
    ("gather", "gather_list elsewhere", (5, "tt", t(), [t()]), lambda g, v, o: g.gather(t(), v, o)),
    ("gather", "dst", RANKS, lambda g, v, o: g.gather(t(), None, v)),
    ("scatter", "tensor", TENSORS, lambda g, v, o: g.scatter(v, None, o)),
    ("scatter", "scatter_list", LISTS, lambda g, v, o: g.scatter(t(), v, 1 - o)),
    ("scatter", "src", RANKS, lambda g, v, o: g.scatter(t(), None, v)),
    ("reduce_scatter", "output", TENSORS, lambda g, v, o: g.reduce_scatter(v, pair())),
    ("reduce_scatter", "input_list", LISTS, lambda g, v, o: g.reduce_scatter(t(), v)),
    ("reduce_scatter", "op", OPS, lambda g, v, o: g.reduce_scatter(t(), pair(), v)),
    ("reduce_scatter_tensor", "output", TENSORS, lambda g, v, o: g.reduce_scatter_tensor(v, t())),
    ("reduce_scatter_tensor", "tensor", TENSORS, lambda g, v, o: g.reduce_scatter_tensor(t(), v)),
    ("reduce_scatter_tensor", "op", OPS, lambda g, v, o: g.reduce_scatter_tensor(torch.zeros(1), t(), v)),
    ("all_to_all", "output_list", LISTS, lambda g, v, o: g.all_to_all(v, pair())),
    ("all_to_all", "input_list", LISTS, lambda g, v, o: g.all_to_all(pair(), v)),
    ("all_to_all_single", "output", TENSORS, lambda g, v, o: g.all_to_all_single(v, t())),
    ("all_to_all_single", "tensor", TENSORS, lambda g, v, o: g.all_to_all_single(t(), v)),
    ("all_to_all_single", "output_split_sizes", SPLITS, lambda g, v, o: g.all_to_all_single(t(), t(), v, None)),
    ("all_to_all_single", "input_split_sizes", SPLITS, lambda g, v, o: g.all_to_all_single(t(), t(), None, v)),
    ("broadcast_object", "src", RANKS, lambda g, v, o: g.broadcast_object(1, v)),
    ("broadcast_object", "allow", ALLOWS, lambda g, v, o: g.broadcast_object(1, 0, allow=v)),
    ("all_gather_object", "allow", ALLOWS, lambda g, v, o: g.all_gather_object(1, allow=v)),
    ("gather_object", "dst", RANKS, lambda g, v, o: g.gather_object(1, v)),
    ("gather_object", "allow", ALLOWS, lambda g, v, o: g.gather_object(1, 0, allow=v)),
    ("scatter_object", "objs", (None, [], [1], [1] * 3, 5, {1, 2}, "ab"), lambda g, v, o: g.scatter_object(v, 1 - o)),
    ("scatter_object", "src", RANKS, lambda g, v, o: g.scatter_object(None, v)),
    ("scatter_object", "allow", ALLOWS, lambda g, v, o: g.scatter_object([1, 2], 1 - o, allow=v)),
    *(
        (name, "timeout", TIMEOUTS, call)
        for name, call in (
            ("send", lambda g, v, o: g.send(t(), o, timeout=v)),
            ("recv", lambda g, v, o: g.recv(t(), o, timeout=v)),
            ("send_tensor", lambda g, v, o: g.send_tensor(t(), o, timeout=v)),
            ("recv_tensor", lambda g, v, o: g.recv_tensor(o, timeout=v)),
            ("send_object", lambda g, v, o: g.send_object(1, o, timeout=v)),
            ("recv_object", lambda g, v, o: g.recv_object(o, timeout=v)),
            ("batch_p2p", lambda g, v, o: g.batch_p2p([], timeout=v)),
            ("broadcast", lambda g, v, o: g.broadcast(t(), 0, timeout=v)),
            ("all_reduce", lambda g, v, o: g.all_reduce(t(), timeout=v)),
            ("reduce", lambda g, v, o: g.reduce(t(), 0, timeout=v)),
            ("all_gather", lambda g, v, o: g.all_gather(pair(), t(), timeout=v)),
            ("all_gather_into_tensor", lambda g, v, o: g.all_gather_into_tensor(torch.zeros(4), t(), timeout=v)),
            ("gather", lambda g, v, o: g.gather(t(), None, o, timeout=v)),
            ("scatter", lambda g, v, o: g.scatter(t(), None, o, timeout=v)),
            ("reduce_scatter", lambda g, v, o: g.reduce_scatter(t(), pair(), timeout=v)),
            ("reduce_scatter_tensor", lambda g, v, o: g.reduce_scatter_tensor(torch.zeros(1), t(), timeout=v)),
            ("all_to_all", lambda g, v, o: g.all_to_all(pair(), pair(), timeout=v)),
            ("all_to_all_single", lambda g, v, o: g.all_to_all_single(t(), t(), timeout=v)),
            ("barrier", lambda g, v, o: g.barrier(timeout=v)),
            ("barrier", lambda g, v, o: g.monitored_barrier(timeout=v)),
            ("broadcast_object", lambda g, v, o: g.broadcast_object(1, 0, timeout=v)),
            ("all_gather_object", lambda g, v, o: g.all_gather_object(1, timeout=v)),
            ("gather_object", lambda g, v, o: g.gather_object(1, 0, timeout=v)),
            ("scatter_object", lambda g, v, o: g.scatter_object(None, o, timeout=v)),
        )
    ),
)


def _judge(error: InvalidArgument, operation: str, said: str) -> str | None:
    told = (error.world, error.rank is not None, bool(error.remedy))
    if told != ("w", True, True) or error.operation != operation:
        return f"{said}: {told}, {error.operation}"
    return None


def _failures_sync(g: Any, other: int) -> list[str]:
    """Name, in words, what does not raise as it should."""
    wrong = []
    for operation, argument, values, call in CASES:
        for value in values:
            said = f"{operation}({argument}={value!r:.40})"
            try:
                got = call(g.sync, value, other)
            except InvalidArgument as error:
                wrong.append(_judge(error, operation, said))
            except Exception as error:  # noqa: BLE001 - it is what the test is about
                wrong.append(f"{said}: {type(error).__name__}: {error}")
            else:
                wrong.append(f"{said}: returned {got!r}")
    return [one for one in wrong if one]


async def _failures_async(g: Any, other: int) -> list[str]:
    wrong = []
    for operation, argument, values, call in CASES:
        for value in values:
            said = f"await {operation}({argument}={value!r:.40})"
            try:
                got = await asyncio.wait_for(call(g, value, other), 10)
            except InvalidArgument as error:
                wrong.append(_judge(error, operation, said))
            except Exception as error:  # noqa: BLE001 - it is what the test is about
                wrong.append(f"{said}: {type(error).__name__}: {error}")
            else:
                wrong.append(f"{said}: returned {got!r}")
    return [one for one in wrong if one]


def _calls_wrongly(context: Context, store: str, rank: int) -> Any:
    with MultiWorld() as mw:
        w = mw.sync.join("w", rank, 2, store=store, op_timeout=20)
        group = w.group([1, 0])
        wrong = _failures_sync(w, 1 - w.rank) + _failures_sync(group, 1 - group.rank)

        async def main() -> None:
            wrong.extend(await _failures_async(w, 1 - w.rank))
            await w.barrier()

        asyncio.run(main())
        total = torch.ones(1)
        w.sync.all_reduce(total)
        return wrong, total.item()


def test_operations(store: str) -> None:
    """Nothing of a refused call is sent: both members make them without regard to each other."""
    with cluster() as c:
        for rank in range(2):
            c.start(_calls_wrongly, store, rank)
        assert c.results(120) == [([], 2.0)] * 2


def _numbers_of_numpy(context: Context, store: str, rank: int) -> Any:
    np = pytest.importorskip("numpy")
    with MultiWorld() as mw:
        w = mw.sync.join("w", np.int64(rank), np.int32(2), store=store)
        group = w.group([np.int64(1), np.uint8(0)])
        same = w.group([1, 0])
        got = torch.zeros(2)
        if rank == 0:
            w.sync.send(torch.ones(2), np.int64(1), tag=np.int16(5))
        else:
            w.sync.recv(got, np.int64(0), tag=5)
        w.sync.broadcast(got, np.int64(1))
        out = torch.zeros(2)
        w.sync.all_to_all_single(out, torch.full((2,), float(rank)), [np.int64(1)] * 2, (np.int8(1), 1))
        return got.tolist(), out.tolist(), group.gid == same.gid, type(w.rank) is int, type(group.ranks[0]) is int


def test_whole_numbers_of_numpy_are_welcome(store: str) -> None:
    pytest.importorskip("numpy")
    with cluster() as c:
        for rank in range(2):
            c.start(_numbers_of_numpy, store, rank)
        assert c.results() == [([1.0, 1.0], [0.0, 1.0], True, True, True)] * 2


@pytest.fixture
def mw() -> Iterator[MultiWorld]:
    with MultiWorld() as made:
        yield made


JOINS: tuple[tuple[str, tuple[Any, ...]], ...] = (
    ("name", ("", None, 5, "a\nb", b"w", ["w"])),
    ("rank", (True, "0", 1.0, -1, 1, torch.tensor(0), [0])),
    ("size", (True, "1", 1.0, 0, -1, 2**20, torch.tensor(1))),
    ("store", (None, 5, "", "ftp://x", "tcp://x", [])),
    ("backend", (None, 5, "mpi", ["gloo"])),
    ("device", ("nowhere", 1.5, [], "meta")),
    ("op_timeout", TIMEOUTS),
    ("join_timeout", (*TIMEOUTS, None)),
    ("heartbeat", (3, 0, "x", Heartbeat)),
    ("address", (5, "", b"127.0.0.1", True)),
    ("resize", (1, "yes", None)),
    ("max_message_bytes", (0, -1, 1.5, True, "1", None)),
)


@pytest.mark.parametrize(("argument", "values"), JOINS, ids=[name for name, _ in JOINS])
def test_join(mw: MultiWorld, store: str, argument: str, values: tuple[Any, ...]) -> None:
    for value in values:
        arguments = {"name": "w", "rank": 0, "size": 1, "store": store, argument: value}
        for join in (mw.sync.join, lambda **kw: asyncio.run(mw.join(**kw))):
            with pytest.raises(MultiWorldError) as caught:
                join(**arguments)  # type: ignore[arg-type]
            assert isinstance(caught.value, ValueError) or argument == "backend", value
    assert mw.sync.join("w", 0, 1, store=store).state is WorldState.ACTIVE, "the name is free again"


@pytest.mark.parametrize(
    "make",
    [
        lambda: MultiWorld(address=5),  # type: ignore[arg-type]
        lambda: MultiWorld(address=""),
        lambda: MultiWorld(heartbeat=0),  # type: ignore[arg-type]
        lambda: MultiWorld(op_timeout=True),
        lambda: Heartbeat("x"),  # type: ignore[arg-type]
        lambda: Heartbeat(interval=True, suspect_after=2, lost_after=3),
        lambda: Heartbeat(1, 0.5, 2),
        lambda: Heartbeat(float("nan")),
        lambda: TcpStoreAddress("h", "80"),  # type: ignore[arg-type]
        lambda: TcpStoreAddress("h", True),
        lambda: TcpStoreAddress(5, 80),  # type: ignore[arg-type]
        lambda: FileStorePath(5),  # type: ignore[arg-type]
        lambda: FileStorePath(""),
    ],
)
def test_what_cannot_be_made(make: Callable[[], Any]) -> None:
    threads = threading.active_count()
    with pytest.raises(InvalidArgument) as caught:
        make()
    assert caught.value.remedy
    assert threading.active_count() <= threads


def test_multiworld(mw: MultiWorld) -> None:
    for call in (
        lambda: mw[5],  # type: ignore[index]
        lambda: mw[["w"]],  # type: ignore[index]
        lambda: mw.subscribe(5),  # type: ignore[arg-type]
        lambda: mw.serve_store(5),  # type: ignore[arg-type]
        lambda: mw.serve_store(port=True),
        lambda: mw.serve_store(port=1.0),  # type: ignore[arg-type]
    ):
        with pytest.raises(InvalidArgument) as caught:
            call()
        assert caught.value.remedy


def test_world(mw: MultiWorld, store: str) -> None:
    w = mw.sync.join("w", 0, 1, store=store)
    for ranks in (None, 0, "0", [True], [0.0], ["0"], [], [0, 0], [1], [torch.tensor(0)], {0}):
        with pytest.raises(InvalidArgument) as caught:
            w.group(ranks)  # type: ignore[arg-type]
        assert (caught.value.operation, caught.value.world) == ("group", "w")
    for label in (None, 5, b"x"):
        with pytest.raises(InvalidArgument, match="label"):
            w.group([0], label)  # type: ignore[arg-type]
    for wrong in (
        *({"rank": v} for v in (True, "0", 1.0, -1, 1)),
        *({"size": v} for v in (True, "1", 0, 1.0)),
        *({"timeout": v} for v in TIMEOUTS),
    ):
        for rejoin in (w.sync.rejoin, lambda **kw: asyncio.run(w.rejoin(**kw))):
            with pytest.raises(InvalidArgument) as caught:
                rejoin(**wrong)  # type: ignore[arg-type]
            assert caught.value.operation == "rejoin"
    assert (w.state, w.generation) == (WorldState.ACTIVE, 1)


def test_compatible_layer(tcp_store: str) -> None:
    from multiworld.manager import WorldManager

    async def main() -> None:
        manager = WorldManager()
        port = int(tcp_store.rpartition(":")[2])
        try:
            for wrong in ({"rank": True}, {"world_size": "1"}, {"port": "x"}, {"timeout": True}, {"addr": ""}):
                arguments = {"world_name": "w", "rank": 0, "world_size": 1, "port": port, **wrong}
                with pytest.raises(MultiWorldError):
                    await manager.initialize_world(**arguments)  # type: ignore[arg-type]
            await manager.initialize_world("w", 0, 1, port=port)
            for name in (5, ["w"], None):
                with pytest.raises(InvalidArgument, match="world_name"):
                    await manager.communicator.send(t(), 0, name)  # type: ignore[arg-type]
            with pytest.raises(InvalidArgument):
                await manager.communicator.broadcast(t(), True, "w")
        finally:
            manager.cleanup()

    asyncio.run(main())
