"""Every kind of tensor in every operation: the right numbers arrive, or the call is refused by the kind's name.

Rank 0 uses the tensor in question, rank 1 a plain one. A refused call sends nothing: rank 1 does not even take part in
it, and the world goes on.
"""

from __future__ import annotations

import warnings
from collections.abc import Awaitable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from procs import shared_pool

from multiworld import P2P, InvalidArgument
from multiworld.lab.context import Context
from multiworld.lab.workers import Running, Worker
from tests.multiworld.core.kinds import KINDS, LARGE, SMALL, Kind, complex_values, constant, mapped, plain, values

Result = list[tuple[torch.Tensor, torch.Tensor]]  # what arrived, and what should have


def _zeros(like: torch.Tensor, count: int = 1) -> torch.Tensor:
    return torch.zeros(count * like.numel(), dtype=like.dtype)


# Operations that read the tensor. `x` is ours, `a` and `b` what those of rank 0 and rank 1 stand for.


async def send(w: Any, x: Any, a: Any, b: Any) -> Result:
    if w.rank == 0:
        await w.send(x, 1)
        return []
    got = _zeros(a)
    await w.recv(got, 0)
    return [(got, a)]


async def send_tensor(w: Any, x: Any, a: Any, b: Any) -> Result:
    if w.rank == 0:
        await w.send_tensor(x, 1)
        return []
    return [(await w.recv_tensor(0), a)]


async def batch_of_sends(w: Any, x: Any, a: Any, b: Any) -> Result:
    got = _zeros(a)
    await w.batch_p2p([P2P("send", x, 1, 3)] if w.rank == 0 else [P2P("recv", got, 0, 3)])
    return [(got, a)] if w.rank else []


async def broadcast(w: Any, x: Any, a: Any, b: Any) -> Result:
    got = x if w.rank == 0 else _zeros(a)
    await w.broadcast(got, 0)
    return [(plain(got), a)]


async def all_gather(w: Any, x: Any, a: Any, b: Any) -> Result:
    got = [_zeros(a), _zeros(a)]
    await w.all_gather(got, x)
    return list(zip(got, (a, b), strict=True))


async def all_gather_into_tensor(w: Any, x: Any, a: Any, b: Any) -> Result:
    got = _zeros(a, 2)
    await w.all_gather_into_tensor(got, x)
    return [(got, torch.cat([a, b]))]


async def gather(w: Any, x: Any, a: Any, b: Any) -> Result:
    got = [_zeros(a), _zeros(a)]
    await w.gather(x, got if w.rank == 1 else None, 1)
    return list(zip(got, (a, b), strict=True)) if w.rank == 1 else []


async def scatter(w: Any, x: Any, a: Any, b: Any) -> Result:
    got = _zeros(a)
    await w.scatter(got, [x, x] if w.rank == 0 else None, 0)
    return [(got, a)]


async def reduce_scatter(w: Any, x: Any, a: Any, b: Any) -> Result:
    got = _zeros(a)
    await w.reduce_scatter(got, [x, x])
    return [(got, a + b)]


async def reduce_scatter_tensor(w: Any, x: Any, a: Any, b: Any) -> Result:
    got = _zeros(a[: len(a) // 2])
    await w.reduce_scatter_tensor(got, x)
    return [(got, (a + b).chunk(2)[w.rank])]


async def all_to_all(w: Any, x: Any, a: Any, b: Any) -> Result:
    got = [_zeros(a), _zeros(a)]
    await w.all_to_all(got, [x, x])
    return list(zip(got, (a, b), strict=True))


async def all_to_all_single(w: Any, x: Any, a: Any, b: Any) -> Result:
    got = _zeros(a)
    await w.all_to_all_single(got, x)
    return [(got, torch.cat([a.chunk(2)[w.rank], b.chunk(2)[w.rank]]))]


SOURCES = (
    send,
    send_tensor,
    batch_of_sends,
    broadcast,
    all_gather,
    all_gather_into_tensor,
    gather,
    scatter,
    reduce_scatter,
    reduce_scatter_tensor,
    all_to_all,
    all_to_all_single,
)

# Operations that write to the tensor. `x` is ours, `s` what is sent.


async def recv(w: Any, x: Any, s: Any) -> Result:
    if w.rank == 1:
        await w.send(s, 0)
        return []
    await w.recv(x, 1)
    return [(x, s)]


async def recv_from_anybody(w: Any, x: Any, s: Any) -> Result:
    if w.rank == 1:
        await w.send(s, 0, tag=2)
        return []
    await w.recv(x, tag=2)
    return [(x, s)]


async def batch_of_receives(w: Any, x: Any, s: Any) -> Result:
    await w.batch_p2p([P2P("send", s, 0, 3)] if w.rank else [P2P("recv", x, 1, 3)])
    return [(x, s)] if w.rank == 0 else []


async def broadcast_to(w: Any, x: Any, s: Any) -> Result:
    await w.broadcast(s if w.rank else x, 1)
    return [(x, s)] if w.rank == 0 else []


async def all_reduce(w: Any, x: Any, s: Any) -> Result:
    expected = plain(x) + s if w.rank == 0 else plain(KEPT[0]) + s
    mine = x if w.rank == 0 else s.clone()
    await w.all_reduce(mine)
    return [(mine, expected)]


async def reduce(w: Any, x: Any, s: Any) -> Result:
    expected = plain(x) + s
    await w.reduce(x if w.rank == 0 else s.clone(), 0)
    return [(x, expected)] if w.rank == 0 else []


async def all_gather_to(w: Any, x: Any, s: Any) -> Result:
    other = _zeros(s)
    await w.all_gather([other, x], s)
    return [(other, s), (x, s)]


async def all_gather_into(w: Any, x: Any, s: Any) -> Result:
    await w.all_gather_into_tensor(x, s[: len(s) // 2])
    return [(x.reshape(-1), torch.cat([s[: len(s) // 2]] * 2))]


async def gather_to(w: Any, x: Any, s: Any) -> Result:
    await w.gather(s, [_zeros(s), x] if w.rank == 0 else None, 0)
    return [(x, s)] if w.rank == 0 else []


async def scatter_to(w: Any, x: Any, s: Any) -> Result:
    await w.scatter(x, [s, s] if w.rank == 1 else None, 1)
    return [(x, s)]


async def reduce_scatter_to(w: Any, x: Any, s: Any) -> Result:
    await w.reduce_scatter(x, [s, s])
    return [(x, s + s)]


async def reduce_scatter_tensor_to(w: Any, x: Any, s: Any) -> Result:
    await w.reduce_scatter_tensor(x, torch.cat([s, s]))
    return [(x, s + s)]


async def all_to_all_to(w: Any, x: Any, s: Any) -> Result:
    other = _zeros(s)
    await w.all_to_all([other, x], [s, s])
    return [(other, s), (x, s)]


async def all_to_all_single_to(w: Any, x: Any, s: Any) -> Result:
    flat = x.reshape(-1) if type(x) is torch.Tensor and not x.is_nested and x.shape[:1] == (1,) else x
    await w.all_to_all_single(flat, s)
    return [(x, torch.cat([s.chunk(2)[w.rank]] * 2))]


TARGETS = (
    recv,
    recv_from_anybody,
    batch_of_receives,
    broadcast_to,
    all_reduce,
    reduce,
    all_gather_to,
    all_gather_into,
    gather_to,
    scatter_to,
    reduce_scatter_to,
    reduce_scatter_tensor_to,
    all_to_all_to,
    all_to_all_single_to,
)
KEPT: list[torch.Tensor] = []


async def _refuses(call: Awaitable[Any], words: str, operation: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        await call
    error = caught.value
    assert words in str(error), f"{operation}: {error}"
    assert error.world == "w"
    assert error.operation, error
    assert error.remedy, error


def _same(pairs: Result, operation: str) -> None:
    for got, expected in pairs:
        assert torch.equal(plain(got).reshape(-1), expected.reshape(-1)), f"{operation}: {got}, expected {expected}"


async def _read(w: Any, kind: Kind, n: int) -> None:
    for operation in SOURCES if n == SMALL or not kind.source else ():
        strange = kind.make(n)
        if kind.source:
            if w.rank == 0:
                like = values(n)
                await _refuses(operation(w, strange, like, like), kind.source, operation.__name__)
        else:
            a = plain(strange).reshape(-1)
            x = strange if w.rank == 0 else a * 3
            _same(await operation(w, x.reshape(-1) if x.shape[:1] == (1,) else x, a, a * 3), operation.__name__)


async def _written(w: Any, kind: Kind, n: int) -> None:
    for operation in TARGETS if n == SMALL or not kind.target else ():
        strange = kind.make(n)
        if kind.target:
            if w.rank == 0:
                before = plain(strange) if kind.make in (constant, mapped) else None
                sent = complex_values(n) if getattr(strange, "dtype", None) is torch.complex64 else values(n)
                KEPT[:] = [sent]
                call = _refusing(operation, w, strange, sent)
                await _refuses(call, kind.target, operation.__name__)
                assert before is None or torch.equal(plain(strange), before)
        else:
            KEPT[:] = [strange]
            s = values(n) * 7
            x = strange if w.rank == 0 else torch.zeros(n)
            _same(await operation(w, x, s), operation.__name__)


async def _refusing(operation: Any, w: Any, x: Any, s: Any) -> Any:
    if operation in (all_reduce, reduce):  # what they would expect cannot be computed for each kind
        return await (w.all_reduce(x) if operation is all_reduce else w.reduce(x, 0))
    return await operation(w, x, s)


async def _as_object(w: Any, kind: Kind) -> None:
    from multiworld import ObjectRefused

    strange = kind.make(SMALL)
    if kind.obj and not kind.obj.startswith(("_rebuild", "Uninit")):
        if w.rank == 0:
            await _refuses(w.send_object({"it": strange}, 1), kind.obj, "send_object")
        return
    if w.rank == 0:
        await w.send_object({"it": strange}, 1)
    elif kind.obj:
        with pytest.raises(ObjectRefused, match=kind.obj):
            await w.recv_object(0)
    else:
        got = (await w.recv_object(0))["it"]
        assert type(got) is (torch.Tensor if isinstance(strange, torch.Tensor) else list)
        if isinstance(strange, torch.Tensor) and strange.is_quantized:
            assert got.qscheme() == strange.qscheme()
            assert torch.equal(got.dequantize(), strange.dequantize())
        else:
            assert torch.equal(plain(got), plain(strange)) if isinstance(strange, torch.Tensor) else got == strange


async def _tried(w: Any, kind: Kind) -> float:
    """Use a kind in every operation; a sum that shows that the world goes on."""
    for n in (SMALL, LARGE):
        await _read(w, kind, n)
        await w.barrier()
        await _written(w, kind, n)
        await w.barrier()
    await _as_object(w, kind)
    total = torch.ones(1)
    await w.all_reduce(total)
    return total.item()


async def join(context: Context, store: str, rank: int) -> None:
    """Be a member of the world that all kinds share."""
    warnings.simplefilter("ignore")
    await context.mw.join("w", rank, 2, store=store, op_timeout=20)


async def use(context: Context, name: str) -> float | str:
    """Use one kind; the sum, or why this torch has no such tensor."""
    try:
        KINDS[name].make(SMALL)
    except (AttributeError, TypeError, RuntimeError, NotImplementedError, pytest.skip.Exception) as error:
        return str(error).partition("\n")[0]
    return await _tried(context.mw["w"], KINDS[name])


class Pair:
    """Two workers in one world, made when they are needed first, and anew after a failure."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._workers: list[Worker] = []

    def use(self, name: str) -> list[float | str]:
        """Use a kind on both sides."""
        try:
            if not self._workers:
                self._workers = [shared_pool().worker() for _ in range(2)]
                store = f"file://{self._folder}/{self._workers[0].pid}"
                _results([worker.start(join, store, rank) for rank, worker in enumerate(self._workers)])
            return _results([worker.start(use, name) for worker in self._workers])
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """End both workers."""
        shared_pool().dismiss(*self._workers)
        self._workers.clear()


def _results(running: list[Running]) -> list[Any]:
    return [call.result() for call in running]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    made = Pair(tmp_path_factory.mktemp("kinds"))
    yield made
    made.end()


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_of_tensor_in_every_operation(pair: Pair, name: str) -> None:
    found = pair.use(name)
    if isinstance(found[0], str):
        pytest.skip(f"this torch has no such tensor: {found[0]}")
    assert found == [2.0, 2.0]
