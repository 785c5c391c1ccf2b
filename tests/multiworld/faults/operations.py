"""The operations of a world as a table: how each is called so that it needs a certain peer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.distributed import ReduceOp

SMALL = 4
LARGE = 1 << 22

Caller = Callable[[Any, int, int], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Operation:
    """One row.

    Attributes:
        name: of the method of ``World``.
        call: ``call(world, peer, count)`` does it with ``count`` floats so that it cannot end without ``peer``.
        collective: whether all members call it alike, so that ``call`` is also what the peer itself does.
        by_length: whether ``count`` matters.
    """

    name: str
    call: Caller
    collective: bool = True
    by_length: bool = True


def _ones(world: Any, count: int) -> torch.Tensor:
    return torch.ones(count).to(world.device)  # a copy: kernels do not run on a simulated device


def _many(world: Any, count: int) -> list[torch.Tensor]:
    return [_ones(world, count) for _ in range(world.size)]


def _send(w: Any, peer: int, n: int) -> Awaitable[Any]:
    awaitable: Awaitable[Any] = w.send(_ones(w, n), peer)
    return awaitable


def _gather(w: Any, peer: int, n: int) -> Awaitable[Any]:
    root = (peer + 1) % w.size
    awaitable: Awaitable[Any] = w.gather(_ones(w, n), _many(w, n) if w.rank == root else None, root)
    return awaitable


def _scatter(w: Any, peer: int, n: int) -> Awaitable[Any]:
    awaitable: Awaitable[Any] = w.scatter(_ones(w, n), _many(w, n) if w.rank == peer else None, peer)
    return awaitable


def _batch(w: Any, peer: int, n: int) -> Awaitable[Any]:
    from multiworld import P2P

    awaitable: Awaitable[Any] = w.batch_p2p([P2P("send", _ones(w, n), peer), P2P("recv", _ones(w, n), peer)])
    return awaitable


def _objects(w: Any) -> list[Any]:
    return [{"rank": rank} for rank in range(w.size)]


POINT_TO_POINT: tuple[Operation, ...] = (
    Operation("send", _send, collective=False),
    Operation("recv", lambda w, p, n: w.recv(_ones(w, n), p), collective=False),
    Operation("send_tensor", lambda w, p, n: w.send_tensor(_ones(w, n), p), collective=False),
    Operation("recv_tensor", lambda w, p, _n: w.recv_tensor(p), collective=False, by_length=False),
    Operation("send_object", lambda w, p, n: w.send_object({"n": n}, p), collective=False, by_length=False),
    Operation("recv_object", lambda w, p, _n: w.recv_object(p), collective=False, by_length=False),
    Operation("batch_p2p", _batch, collective=False),
)

COLLECTIVES: tuple[Operation, ...] = (
    Operation("broadcast", lambda w, p, n: w.broadcast(_ones(w, n), p)),
    Operation("all_reduce", lambda w, _p, n: w.all_reduce(_ones(w, n), ReduceOp.SUM)),
    Operation("reduce", lambda w, p, n: w.reduce(_ones(w, n), (p + 1) % w.size)),
    Operation("all_gather", lambda w, _p, n: w.all_gather(_many(w, n), _ones(w, n))),
    Operation("all_gather_into_tensor", lambda w, _p, n: w.all_gather_into_tensor(_ones(w, n * w.size), _ones(w, n))),
    Operation("gather", _gather),
    Operation("scatter", _scatter),
    Operation("reduce_scatter", lambda w, _p, n: w.reduce_scatter(_ones(w, n), _many(w, n))),
    Operation("reduce_scatter_tensor", lambda w, _p, n: w.reduce_scatter_tensor(_ones(w, n), _ones(w, n * w.size))),
    Operation("all_to_all", lambda w, _p, n: w.all_to_all(_many(w, n), _many(w, n))),
    Operation("all_to_all_single", lambda w, _p, n: w.all_to_all_single(_ones(w, n * w.size), _ones(w, n * w.size))),
    Operation("barrier", lambda w, _p, _n: w.barrier(), by_length=False),
    Operation("monitored_barrier", lambda w, _p, _n: w.monitored_barrier(), by_length=False),
    Operation("broadcast_object", lambda w, p, n: w.broadcast_object({"n": n}, p), by_length=False),
    Operation("all_gather_object", lambda w, _p, n: w.all_gather_object({"n": n}), by_length=False),
    Operation("gather_object", lambda w, p, n: w.gather_object({"n": n}, (p + 1) % w.size), by_length=False),
    Operation("scatter_object", lambda w, p, _n: w.scatter_object(_objects(w), p), by_length=False),
)

OPERATIONS = {operation.name: operation for operation in (*POINT_TO_POINT, *COLLECTIVES)}


@dataclass(frozen=True, slots=True)
class Row:
    """One case: an operation with a length."""

    operation: str
    count: int

    def __str__(self) -> str:
        by_length = OPERATIONS[self.operation].by_length
        return f"{self.operation}-{'large' if self.count == LARGE else 'small'}" if by_length else self.operation


def rows(names: tuple[str, ...] = tuple(OPERATIONS)) -> list[Row]:
    """Each named operation with a small and, where it matters, a large tensor."""
    lengths = {name: (SMALL, LARGE) if OPERATIONS[name].by_length else (SMALL,) for name in names}
    return [Row(name, count) for name in names for count in lengths[name]]
