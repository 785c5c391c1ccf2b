"""Send and receive: all forms, order, tags, self-describing messages, any source, batches, mismatches."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import torch
from procs import cluster
from table import SOON, members

from multiworld import P2P, InvalidArgument, MultiWorld, ObjectRefused, TensorMismatch
from multiworld.lab.context import Context
from multiworld.operations import p2p


def _member(context: Context, store: str, rank: int, size: int, name: str) -> Any:
    async def main() -> Any:
        async with MultiWorld() as mw:
            w = await mw.join("w", rank, size, store=store)
            return await globals()[name](w)

    return asyncio.run(asyncio.wait_for(main(), 25))


def run_pair(store: str, name: str, size: int = 2) -> list[Any]:
    with cluster() as c:
        for rank in range(size):
            c.start(_member, store, rank, size, name)
        return c.results()


async def exchange_dtypes(w: Any) -> list[bool]:
    same = []
    for dtype in (torch.float32, torch.bfloat16, torch.int64, torch.bool, torch.complex64, torch.uint8):
        for shape in ((), (1,), (3, 5), (0,), (70_000,)):
            sent = torch.arange(1, 1 + int(torch.Size(shape).numel())).reshape(shape).to(dtype)
            if w.rank == 0:
                await w.send(sent, 1)
            else:
                got = torch.zeros(shape, dtype=dtype)
                assert await w.recv(got, 0) == 0
                same.append(torch.equal(got, sent))
    return same


def test_every_dtype_and_shape_arrives(store: str) -> None:
    same = run_pair(store, "exchange_dtypes")[1]
    assert len(same) == 30
    assert all(same)


def _limited(context: Context, store: str, rank: int) -> Any:
    with MultiWorld() as mw:
        w = mw.sync.join("w", rank, 2, store=store, max_message_bytes=110 if rank else 1 << 20)
        long, short = torch.zeros(26), torch.arange(25.0)  # 104 and 100 bytes, and 9 of the shape
        with pytest.raises(TensorMismatch):
            w.sync.send_tensor(long, 1) if rank == 0 else w.sync.recv_tensor(0)
        if rank == 0:
            w.sync.send_tensor(short, 1)
            return 25
        return w.config.max_message_bytes, w.sync.recv_tensor(0).numel()


def test_a_message_longer_than_the_limit_is_refused(store: str) -> None:
    with cluster() as c:
        for rank in range(2):
            c.start(_limited, store, rank)
        assert c.results() == [25, (110, 25)]


def _reduces_beyond_its_limit(context: Context, store: str, rank: int) -> Any:
    with MultiWorld() as mw:
        w = mw.sync.join("w", rank, 2, store=store, max_message_bytes=100)
        total = torch.ones(1000)
        w.sync.all_reduce(total)
        return total.unique().tolist()


def test_the_limit_is_for_messages_and_not_for_collectives(store: str) -> None:
    """All members say how long the payload of a collective is."""
    with cluster() as c:
        for rank in range(2):
            c.start(_reduces_beyond_its_limit, store, rank)
        assert c.results() == [[2.0], [2.0]]


async def tags_out_of_order(w: Any) -> list[float]:
    if w.rank == 0:
        a = asyncio.create_task(w.send(torch.tensor([1.0]), 1, tag=1))
        b = asyncio.create_task(w.send(torch.tensor([2.0]), 1, tag=2))
        await asyncio.gather(a, b)
        return []
    got = torch.zeros(2, 1)
    await w.recv(got[1], 0, tag=2)
    await w.recv(got[0], 0, tag=1)
    return got.flatten().tolist()


def test_tags_match_whatever_the_order(store: str) -> None:
    assert run_pair(store, "tags_out_of_order")[1] == [1.0, 2.0]


async def many_in_order(w: Any) -> list[float]:
    if w.rank == 0:
        await asyncio.gather(*(w.send(torch.tensor([float(i)]), 1) for i in range(100)))
        return []
    got = torch.zeros(100, 1)
    await asyncio.gather(*(w.recv(got[i], 0) for i in range(100)))
    return got.flatten().tolist()


def test_messages_keep_their_order(store: str) -> None:
    assert run_pair(store, "many_in_order")[1] == [float(i) for i in range(100)]


async def self_describing(w: Any) -> Any:
    if w.rank == 0:
        await w.send_tensor(torch.arange(12.0).reshape(3, 4), 1)
        await w.send_tensor(torch.empty(0, 7, dtype=torch.int16), 1)
        await w.send_object({"a": [1, (2.5, "x")], "t": torch.ones(2, dtype=torch.bfloat16)}, 1)
        return None
    first, second = await w.recv_tensor(0), await w.recv_tensor(0)
    obj = await w.recv_object(0)
    return first.tolist(), tuple(second.shape), str(second.dtype), obj["a"], obj["t"].tolist(), str(obj["t"].dtype)


def test_tensors_and_objects_describe_themselves(store: str) -> None:
    first, shape, dtype, a, t, t_dtype = run_pair(store, "self_describing")[1]
    assert first == torch.arange(12.0).reshape(3, 4).tolist()
    assert (shape, dtype) == ((0, 7), "torch.int16")
    assert a == [1, (2.5, "x")]
    assert (t, t_dtype) == ([1.0, 1.0], "torch.bfloat16")


class Evil:
    def __reduce__(self) -> Any:
        return (exec, ("raise SystemExit('loaded')",))


class Friendly:
    def __init__(self) -> None:
        self.value = 5


async def refused_object(w: Any) -> Any:
    if w.rank == 0:
        await w.send_object(Evil(), 1)
        await w.send_object(Friendly(), 1)
        await w.send(torch.ones(1), 1)
        return None
    with pytest.raises(ObjectRefused) as caught:
        await w.recv_object(0)
    friendly = await w.recv_object(0, allow=[Friendly])
    await w.recv(torch.zeros(1), 0)
    return str(caught.value), friendly.value


def test_objects_load_only_what_is_allowed(store: str) -> None:
    message, value = run_pair(store, "refused_object")[1]
    assert "exec" in message
    assert "'w'" in message
    assert value == 5


async def mismatches(w: Any) -> list[str]:
    """Too long, too short, another dtype: both sides are told, nothing arrives, and the world goes on."""
    seen = []
    for sent, expected in (
        (torch.ones(1000), torch.zeros(10)),
        (torch.ones(10), torch.zeros(1000)),
        (torch.ones(4, dtype=torch.int32), torch.zeros(4)),
        (torch.ones(3_000_000), torch.zeros(1)),
    ):
        with pytest.raises(TensorMismatch) as caught:
            await (w.send(sent, 1) if w.rank == 0 else w.recv(expected, 0))
        seen.append(str(caught.value))
        assert caught.value.operation == ("send" if w.rank == 0 else "recv")
        assert not expected.any()
    got = torch.zeros(1)
    await (w.send(torch.ones(1), 1) if w.rank == 0 else w.recv(got, 0))
    assert w.rank == 0 or got.item() == 1
    assert w.state.value == "active"
    return seen


def test_a_message_that_does_not_fit_is_an_error_on_both_sides(store: str) -> None:
    sender, receiver = run_pair(store, "mismatches")
    assert "4000 bytes of float32" in sender[0]
    assert "40 bytes of float32" in sender[0]
    assert "int32" in receiver[2]


async def from_anybody(w: Any) -> Any:
    if w.rank == 0:
        got, sources = [], []
        for _ in range(2 * (w.size - 1)):
            t = torch.zeros(1)
            sources.append(await w.recv(t))
            got.append(t.item())
        return sorted(zip(sources, got, strict=True))
    for i in range(2):
        await w.send(torch.tensor([w.rank * 10.0 + i]), 0)
    return None


def test_receive_from_any_source(store: str) -> None:
    assert run_pair(store, "from_anybody", 3)[0] == [(1, 10.0), (1, 11.0), (2, 20.0), (2, 21.0)]


async def batches(w: Any) -> Any:
    other = 1 - w.rank
    got = torch.zeros(3)
    operations = [P2P("recv", got, other, 5), P2P("send", torch.full((3,), float(w.rank)), other, 5)]
    assert await w.batch_p2p(operations) == [other, None]
    return got.tolist()


def test_batch_of_crossing_messages(store: str) -> None:
    assert run_pair(store, "batches") == [[1.0] * 3, [0.0] * 3]


async def bad_arguments(w: Any) -> int:
    count = 0
    t = torch.zeros(4, 4)
    for call in (
        lambda: w.send(t, 2),
        lambda: w.send(t, -1),
        lambda: w.send(t, w.rank),
        lambda: w.send(t.T[:, :2], 1 - w.rank),
        lambda: w.send([1, 2], 1 - w.rank),
        lambda: w.send(t, 1 - w.rank, tag=-1),
        lambda: w.recv(t.to_sparse(), 1 - w.rank),
        lambda: w.recv(torch.zeros(2, device="meta"), 1 - w.rank),
        lambda: w.batch_p2p([P2P("recv", t, 7)]),
        lambda: w.batch_p2p(["send"]),
        lambda: w.all_gather([t], t),
        lambda: w.scatter(t, None, src=w.rank),
        lambda: w.broadcast(t, 9),
        lambda: w.all_reduce(t, "sum"),
        lambda: w.reduce_scatter_tensor(t, t),
        lambda: w.all_to_all_single(t, t, [1, 1], None),
    ):
        with pytest.raises(InvalidArgument) as caught:
            await call()
        error = caught.value
        assert (error.world, error.rank, error.generation) == ("w", w.rank, 1), error
        assert error.operation, error
        assert error.remedy, error
        count += 1
    await w.barrier()
    return count


def test_bad_arguments_are_typed_errors_at_once_and_harm_nothing(store: str) -> None:
    assert run_pair(store, "bad_arguments") == [16, 16]


def test_nothing_stays_of_a_batch_of_which_a_part_failed(store: str) -> None:
    with members(store, 2) as ((first, second), pool):
        sent = pool.submit(second.sync.batch_p2p, [P2P("send", torch.ones(6), 0, tag) for tag in range(2)])
        engine, bridge = first.member.session.engine, first.member.session.bridge
        batch: Any = p2p.batch_p2p(engine, first, [P2P("recv", torch.zeros(1 + 5 * tag), 1, tag) for tag in range(2)])
        bridge.wait(batch)
        with pytest.raises(TensorMismatch):
            batch.result()
        assert isinstance(sent.exception(SOON), TensorMismatch)
        assert [engine.outcome(one.number)[0] for one in batch.operations] == [0, 0]
