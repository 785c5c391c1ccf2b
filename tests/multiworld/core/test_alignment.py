"""Tensors at any address: torch computes on complex128 at multiples of 16 bytes only, and ends the process elsewhere.

So each test runs in a process of its own, whose end is a failure.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from engines import Network
from fence import before_fence
from procs import cluster
from table import members
from torch.distributed import ReduceOp

from multiworld import InvalidArgument
from multiworld.lab.context import Context
from multiworld.matching.collective_plan import REDUCTIONS
from multiworld.matching.memory import bytes_of
from multiworld.matching.protocol import CODES
from multiworld.operations import collectives, exchanges
from multiworld.tensors import memory_check

#: a nightly run has all
SIZES = (0, 1, 2, 3, 5, 8, 9, 17, 33)
ALL_SIZES = (*range(10), 15, 17, 31, 33)
#: bytes between the end of a tensor and the page behind it that nobody may touch
GAPS = (0, 1, 8)
LARGE = 70_000  # through Gloo
OPS = tuple(getattr(ReduceOp, name) for name in REDUCTIONS)
#: torch fills no tensor of these with numbers
NO_NUMBERS = {getattr(torch, name, None) for name in ("float8_e8m0fnu", "float4_e2m1fn_x2")}
DTYPES = tuple(dtype for dtype in CODES if dtype not in NO_NUMBERS)
COMPLEX = (torch.complex64, torch.complex128)

At = Callable[[torch.Tensor], torch.Tensor]


def values(start: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Small numbers that every dtype has, in torch's own memory."""
    return (torch.arange(count) % 3 + start).to(dtype)


def bits(tensor: torch.Tensor) -> bytes:
    """The content of a tensor, without torch's arithmetic."""
    return bytes(bytes_of(tensor))


def as_it_is(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def all_reduce(net: Network, rank: int, at: At, count: int, dtype: torch.dtype, op: Any) -> tuple[Any, torch.Tensor]:
    target = at(values(rank, count, dtype))
    return net.start(rank, collectives.all_reduce, target, op), target


def reduce(net: Network, rank: int, at: At, count: int, dtype: torch.dtype, op: Any) -> tuple[Any, torch.Tensor]:
    target = at(values(rank, count, dtype))
    return net.start(rank, collectives.reduce, target, 1, op), target


def reduce_scatter(
    net: Network, rank: int, at: At, count: int, dtype: torch.dtype, op: Any
) -> tuple[Any, torch.Tensor]:
    target, inputs = at(values(0, count, dtype)), [at(values(rank + place, count, dtype)) for place in range(2)]
    return net.start(rank, exchanges.reduce_scatter, target, inputs, op), target


def reduce_scatter_tensor(
    net: Network, rank: int, at: At, count: int, dtype: torch.dtype, op: Any
) -> tuple[Any, torch.Tensor]:
    target, source = at(values(0, count, dtype)), at(values(rank, 2 * count, dtype))
    return net.start(rank, exchanges.reduce_scatter_tensor, target, source, op), target


def reduced(net: Network, start: Any, at: At, count: int, dtype: torch.dtype, op: Any) -> list[bytes]:
    """Run a reduction on both members of a world; the content of their targets."""
    started = [start(net, rank, at, count, dtype, op) for rank in range(2)]
    net.settle()
    for operation, _ in started:
        operation.result()
    return [bits(target) for _, target in started]


def reductions(_: Context, dtype: torch.dtype, sizes: tuple[int, ...]) -> int:
    """Compare all that this torch can reduce of a dtype, at each place; how many were compared."""
    net, compared = Network(2), 0
    for start, op in itertools.product((all_reduce, reduce, reduce_scatter, reduce_scatter_tensor), OPS):
        try:
            expected = {count: reduced(net, start, as_it_is, count, dtype, op) for count in sizes}
        except InvalidArgument:
            continue
        for count, gap in itertools.product(sizes, GAPS):
            at = partial(before_fence, gap=gap)
            assert reduced(net, start, at, count, dtype, op) == expected[count], (start, op, count, gap)
            compared += 1
    return compared


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_small_reductions(dtype: torch.dtype, whole: bool) -> None:
    with cluster() as c:
        c.start(reductions, dtype, ALL_SIZES if whole else SIZES)
        assert c.results()[0] or "float8" in str(dtype)


def on_gloo(_: Context, store: str, dtype: torch.dtype) -> int:
    """The same through the backend, at an odd address."""
    compared = 0
    with members(store, 2) as (worlds, pool):

        def run(rank: int, op: Any, at: At) -> list[bytes]:
            world = worlds[rank].sync
            one, two, piece = (at(values(rank, n, dtype)) for n in (LARGE, LARGE, LARGE))
            world.all_reduce(one, op)
            world.reduce(two, 0, op)
            world.reduce_scatter_tensor(piece, at(values(rank, 2 * LARGE, dtype)), op)
            return [bits(one), bits(two) if rank == 0 else b"", bits(piece)]

        for op in OPS:
            try:
                expected = list(pool.map(run, range(2), [op] * 2, [as_it_is] * 2))
            except InvalidArgument:
                continue
            assert list(pool.map(run, range(2), [op] * 2, [partial(before_fence, gap=1)] * 2)) == expected
            compared += 1
    return compared


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, *COMPLEX], ids=str)
def test_large_reductions(store: str, dtype: torch.dtype) -> None:
    with cluster() as c:
        c.start(on_gloo, store, dtype)
        assert c.results()[0]


def moves(_: Context, store: str, debug_memory: bool) -> None:
    """Move unaligned tensors, lazily conjugated ones among them, by all operations that compute nothing."""
    memory_check.ACTIVE = debug_memory  # as MULTIWORLD_DEBUG_MEMORY does
    count = 7

    def made(start: int, length: int = count) -> torch.Tensor:
        return before_fence(torch.complex(values(start, length, torch.float64), torch.ones(length).double()), 8)

    with members(store, 2) as (worlds, pool):

        def run(rank: int) -> list[bytes]:
            world, other = worlds[rank].sync, 1 - rank
            got, whole, pair = made(0), made(0, 2 * count), [made(0), made(0)]
            said = made(1).conj() if rank == 0 else got
            world.broadcast(said, 0)
            world.all_gather(pair, made(rank).conj())
            world.all_gather_into_tensor(whole, made(rank))
            world.all_to_all(pair, [made(rank), made(rank).conj()])
            world.scatter(got, [made(3), made(3).conj()] if rank == 0 else None)
            world.gather(made(rank).conj(), pair if rank == 0 else None)
            if rank == 0:
                world.send(made(4).conj(), other)
                world.send_tensor(made(5).conj(), other)
                world.send_object(made(6, 2 * count)[::2].conj(), other)
                return list(map(bits, (whole, *pair)))
            world.recv(got, other)
            return [*map(bits, (whole, got, world.recv_tensor(other), world.recv_object(other)))]

        first, second = pool.map(run, range(2))
    plain = [torch.complex(values(n, count, torch.float64), torch.ones(count).double()) for n in range(7)]
    both = bits(torch.cat(plain[:2]))
    assert first == [both, bits(plain[0].conj().resolve_conj()), bits(plain[1].conj().resolve_conj())]
    every_second = torch.complex(values(6, 2 * count, torch.float64), torch.ones(2 * count).double())[::2].conj()
    sent = (plain[4].conj().resolve_conj(), plain[5].conj().resolve_conj(), every_second.resolve_conj().contiguous())
    assert second == [both, *map(bits, sent)]


@pytest.mark.parametrize("debug_memory", [False, True])
def test_moves(store: str, debug_memory: bool) -> None:
    with cluster() as c:
        c.start(moves, store, debug_memory)
        c.results()
