"""Every collective, small (with the signatures) and large (on Gloo), against what it must give; and disagreements."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import torch
from procs import cluster
from torch.distributed import ReduceOp

from multiworld import MultiWorld, ObjectRefused, OpTimeout, TensorMismatch
from multiworld.lab.context import Context

SMALL, LARGE = 6, 200_000  # the larger one goes through the backend
SIZE = 3


def _value(rank: int, n: int) -> torch.Tensor:
    return torch.arange(n, dtype=torch.float32) % 11 + 100 * (rank + 1)


async def broadcast(w: Any, n: int) -> bool:
    t = _value(w.rank, n)
    await w.broadcast(t, 1)
    return torch.equal(t, _value(1, n))


async def all_reduce(w: Any, n: int) -> bool:
    ok = True
    values = torch.stack([_value(r, n) for r in range(w.size)])
    for op, expected in (
        (ReduceOp.SUM, values.sum(0)),
        (ReduceOp.MAX, values.max(0).values),
        (ReduceOp.MIN, values.min(0).values),
        (ReduceOp.PRODUCT, values.prod(0)),
        (ReduceOp.AVG, values.mean(0)),
    ):
        t = _value(w.rank, n)
        await w.all_reduce(t, op)
        ok = ok and torch.allclose(t, expected)
    return ok


async def reduce(w: Any, n: int) -> bool:
    t = _value(w.rank, n)
    await w.reduce(t, 2)
    return w.rank != 2 or torch.equal(t, sum(_value(r, n) for r in range(w.size)))


async def all_gather(w: Any, n: int) -> bool:
    outputs = [torch.zeros(n) for _ in range(w.size)]
    await w.all_gather(outputs, _value(w.rank, n))
    return all(torch.equal(outputs[r], _value(r, n)) for r in range(w.size))


async def all_gather_into_tensor(w: Any, n: int) -> bool:
    output = torch.zeros(w.size, n)
    await w.all_gather_into_tensor(output, _value(w.rank, n))
    return all(torch.equal(output[r], _value(r, n)) for r in range(w.size))


async def gather(w: Any, n: int) -> bool:
    outputs = [torch.zeros(n) for _ in range(w.size)] if w.rank == 1 else None
    await w.gather(_value(w.rank, n), outputs, 1)
    return outputs is None or all(torch.equal(outputs[r], _value(r, n)) for r in range(w.size))


async def scatter(w: Any, n: int) -> bool:
    t = torch.zeros(n)
    await w.scatter(t, [_value(r, n) for r in range(w.size)] if w.rank == 1 else None, 1)
    return torch.equal(t, _value(w.rank, n))


async def reduce_scatter(w: Any, n: int) -> bool:
    output, other = torch.zeros(n), torch.zeros(n)
    await w.reduce_scatter(output, [_value(w.rank, n) + place for place in range(w.size)])
    await w.reduce_scatter_tensor(other, torch.cat([_value(w.rank, n) + place for place in range(w.size)]))
    expected = sum(_value(r, n) + w.rank for r in range(w.size))
    return torch.equal(output, expected) and torch.equal(other, expected)


async def all_to_all(w: Any, n: int) -> bool:
    sizes = lambda source, target: n + source + 10 * target  # noqa: E731
    inputs = [_value(w.rank, sizes(w.rank, r)) for r in range(w.size)]
    outputs = [torch.zeros(sizes(r, w.rank)) for r in range(w.size)]
    await w.all_to_all(outputs, inputs)
    return all(torch.equal(outputs[r], _value(r, sizes(r, w.rank))) for r in range(w.size))


async def all_to_all_single(w: Any, n: int) -> bool:
    output = torch.zeros(n * w.size, 2)
    await w.all_to_all_single(output, torch.cat([torch.full((n, 2), 10.0 * w.rank + r) for r in range(w.size)]))
    uneven = torch.zeros(n * w.size + 3 * w.rank)
    await w.all_to_all_single(
        uneven, torch.full((n * w.size + 3,), float(w.rank)), [n + w.rank] * w.size, [n, n + 1, n + 2]
    )
    even_ok = all((output[r * n : (r + 1) * n] == 10.0 * r + w.rank).all() for r in range(w.size))
    step = n + w.rank
    return even_ok and all((uneven[r * step : (r + 1) * step] == r).all() for r in range(w.size))


async def other_dtypes(w: Any, n: int) -> bool:
    ok = True
    for dtype in (torch.bool, torch.int16, torch.complex64, torch.bfloat16):
        t = (torch.arange(n) % 2 + w.rank).to(dtype)
        outputs = [torch.zeros(n, dtype=dtype) for _ in range(w.size)]
        await w.all_gather(outputs, t)
        await w.broadcast(t, 0)
        ok = ok and torch.equal(outputs[0], t)
    return ok


async def subgroup(w: Any, n: int) -> bool:
    if w.rank == 1:
        return True
    g = w.group([2, 0])
    t = _value(w.rank, n)
    await g.all_reduce(t)
    got = torch.zeros(1)
    await (g.send(torch.tensor([5.0]), 1) if g.rank == 0 else g.recv(got, 0))
    return torch.equal(t, _value(0, n) + _value(2, n)) and (g.rank == 0 or got.item() == 5)


async def concurrent(w: Any, n: int) -> bool:
    tensors = [_value(w.rank, n) + i for i in range(8)]
    await asyncio.gather(*(w.all_reduce(t) for t in tensors), w.barrier(), w.monitored_barrier())
    return all(torch.equal(t, sum(_value(r, n) + i for r in range(w.size))) for i, t in enumerate(tensors))


OPERATIONS: list[Callable[[Any, int], Any]] = [
    broadcast,
    all_reduce,
    reduce,
    all_gather,
    all_gather_into_tensor,
    gather,
    scatter,
    reduce_scatter,
    all_to_all,
    all_to_all_single,
    other_dtypes,
    subgroup,
    concurrent,
]


def _all_operations(context: Context, store: str, rank: int) -> dict[str, bool]:
    async def main() -> dict[str, bool]:
        async with MultiWorld() as mw:
            w = await mw.join("w", rank, SIZE, store=store, op_timeout=20)
            return {f"{op.__name__} {n}": bool(await op(w, n)) for op in OPERATIONS for n in (SMALL, LARGE)}

    return asyncio.run(main())


def test_every_collective_small_and_large(store: str) -> None:
    with cluster() as c:
        for rank in range(SIZE):
            c.start(_all_operations, store, rank)
        for outcome in c.results(60):
            assert [name for name, right in outcome.items() if not right] == []
            assert len(outcome) == 2 * len(OPERATIONS)


def _sync_operations(context: Context, store: str, rank: int) -> Any:
    with MultiWorld() as mw:
        w = mw.sync.join("w", rank, 2, store=store)
        t = _value(rank, LARGE)
        w.sync.all_reduce(t)
        objects = w.sync.all_gather_object({"rank": rank})
        mine = w.sync.scatter_object(["a", "b"] if rank == 0 else None)
        told = w.sync.broadcast_object(42 if rank == 1 else None, 1)
        gathered = w.sync.gather_object(rank * 2, 1)
        with pytest.raises(ObjectRefused):
            w.sync.all_gather_object(WrongType())
        w.sync.barrier()
        return torch.equal(t, _value(0, LARGE) + _value(1, LARGE)), objects, mine, told, gathered


class WrongType:
    pass


def test_synchronous_twins_and_objects(store: str) -> None:
    with cluster() as c:
        c.start(_sync_operations, store, 0), c.start(_sync_operations, store, 1)
        first, second = c.results()
    assert first == (True, [{"rank": 0}, {"rank": 1}], "a", 42, None)
    assert second == (True, [{"rank": 0}, {"rank": 1}], "b", 42, [0, 2])


DISAGREEMENTS: dict[str, Callable[[Any, int], Any]] = {
    "length": lambda w, n: w.all_reduce(torch.zeros(n + w.rank)),
    "dtype": lambda w, n: w.all_reduce(torch.zeros(n, dtype=torch.int32 if w.rank else torch.float32)),
    "reduction": lambda w, n: w.all_reduce(torch.zeros(n), ReduceOp.MAX if w.rank == 1 else ReduceOp.SUM),
    "root": lambda w, n: w.broadcast(torch.zeros(n), w.rank),
    "operation": lambda w, n: w.barrier() if w.rank == 0 else w.all_reduce(torch.zeros(n)),
    "oversized": lambda w, n: w.all_reduce(torch.zeros(n * 50 if w.rank == 0 else n)),
    "splits": lambda w, n: w.all_to_all(
        [torch.zeros(n + w.rank) for _ in range(3)], [torch.zeros(n) for _ in range(3)]
    ),
}


def _disagree(context: Context, store: str, rank: int) -> dict[str, str]:
    async def main() -> dict[str, str]:
        seen = {}
        async with MultiWorld() as mw:
            w = await mw.join("w", rank, SIZE, store=store, op_timeout=20)
            for name, call in DISAGREEMENTS.items():
                for n in (SMALL, LARGE):
                    with pytest.raises(TensorMismatch) as caught:
                        await call(w, n)
                    seen[f"{name} {n}"] = str(caught.value)
            t = torch.ones(LARGE)
            await w.all_reduce(t)
            assert t[0].item() == SIZE
        return seen

    return asyncio.run(main())


def test_disagreements_are_errors_on_all_ranks_and_the_world_goes_on(store: str) -> None:
    with cluster() as c:
        for rank in range(SIZE):
            c.start(_disagree, store, rank)
        for rank, seen in enumerate(c.results(60)):
            assert len(seen) == 2 * len(DISAGREEMENTS)
            assert all(f"rank {rank}" in text and "rank" in text for text in seen.values())
            assert "float32" in seen[f"dtype {LARGE}"]
            assert "int32" in seen[f"dtype {LARGE}"]


def _missing_member(context: Context, store: str, rank: int) -> str:
    with MultiWorld() as mw:
        w = mw.sync.join("w", rank, 3, store=store)
        if rank == 2:
            context.recv()
            return ""
        with pytest.raises((OpTimeout, Exception)) as caught:
            w.sync.monitored_barrier(timeout=0.4)
        return f"{type(caught.value).__name__}: {caught.value}"


def test_a_barrier_says_who_did_not_come(store: str) -> None:
    with cluster() as c:
        members = [c.start(_missing_member, store, rank) for rank in range(3)]
        texts = [member.result() for member in members[:2]]
        members[2].send("go")
    assert any(text.startswith("OpTimeout") and "ranks [2] to call it" in text for text in texts)
