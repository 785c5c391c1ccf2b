"""Every kind of tensor in every operation: the right numbers arrive, or the call is refused by the kind's name.

Rank 0 uses the tensor in question, rank 1 a plain one. A refused call sends nothing: rank 1 does not even take part in
it, and the world goes on.
"""

from __future__ import annotations

import array
import functools
import mmap
import tempfile
import warnings
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from procs import Link, cluster

from multiworld import P2P, InvalidArgument, MultiWorld

SMALL, LARGE = 4, 300_000  # the larger one goes through the backend
Make = Callable[[int], torch.Tensor]


def _values(n: int) -> torch.Tensor:
    return torch.arange(1, n + 1, dtype=torch.float32) % 9 + 1


def _complex(n: int) -> torch.Tensor:
    return torch.complex(_values(n), -_values(n))


class Marked(torch.Tensor):
    """A subclass without a dispatch of its own."""


class Hollow(torch.Tensor):
    """A wrapper: what it means lies in another tensor."""

    @staticmethod
    def __new__(cls: Any, inner: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    @classmethod
    def __torch_dispatch__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise NotImplementedError(function)


def _fake(n: int) -> torch.Tensor:
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode().from_tensor(_values(n))


def _caught(transform: Callable[..., Any], n: int) -> torch.Tensor:
    """A tensor as a transform of torch.func hands it to its function."""
    seen: list[torch.Tensor] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        seen.append(x)
        return x.sum()

    transform(function)(torch.stack([_values(n)] * 2))
    return seen[0]


def _shrunk(n: int, nbytes: int) -> torch.Tensor:
    tensor = _values(n)
    tensor.untyped_storage().resize_(nbytes)
    return tensor


def _inference(n: int) -> torch.Tensor:
    with torch.inference_mode():
        return _values(n)


def _mapped(n: int) -> torch.Tensor:
    with tempfile.TemporaryFile() as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        array.array("f", _values(n).tolist()).tofile(file)
        file.flush()
        return torch.frombuffer(mmap.mmap(file.fileno(), 4 * n, prot=mmap.PROT_READ), dtype=torch.float32)


def _constant(n: int) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.frombuffer(array.array("f", _values(n).tolist()).tobytes(), dtype=torch.float32)


def _distributed(n: int) -> torch.Tensor:
    tensor = pytest.importorskip("torch.distributed.tensor")
    spec = pytest.importorskip("torch.distributed.tensor._dtensor_spec")
    mesh = torch.distributed.device_mesh.DeviceMesh("cpu", [0], _init_backend=False, _rank=0)
    meta = spec.TensorMeta(torch.Size([n]), (1,), torch.float32)
    return tensor.DTensor(_values(n), spec.DTensorSpec(mesh, (tensor.Replicate(),), meta), requires_grad=False)


@dataclass(frozen=True)
class Kind:
    """What becomes of a kind of tensor: empty for the right numbers, else words of the refusal."""

    make: Make
    source: str = ""
    target: str = ""
    obj: str = ""


def _refused(make: Make, words: str, obj: str | None = None) -> Kind:
    return Kind(make, words, words, words if obj is None else obj)


LAZY = "lazily conjugated or negated"
KINDS = {
    "plain": Kind(_values),
    "parameter": Kind(lambda n: torch.nn.Parameter(_values(n))),
    "buffer": Kind(lambda n: torch.nn.Buffer(_values(n))),
    "requires grad": Kind(lambda n: _values(n).requires_grad_()),
    "of autograd": Kind(lambda n: _values(n).requires_grad_() * 2),
    "inference": Kind(_inference),
    "shared memory": Kind(lambda n: _values(n).share_memory_()),
    "numpy's memory": Kind(lambda n: torch.from_numpy(_values(n).numpy().copy())),
    "in the middle": Kind(lambda n: torch.cat([_values(n)] * 3)[n : 2 * n]),
    "stride 0, size 1": Kind(lambda n: _values(n).as_strided((1, n), (0, 1))),
    "subclass": Kind(lambda n: _values(n).as_subclass(Marked), obj="_rebuild_from_type_v2"),
    "conjugated": Kind(lambda n: _complex(n).conj(), target=LAZY),
    "negated": Kind(lambda n: torch._neg_view(_values(n)), target=LAZY),
    "constant": Kind(_constant, target="bytes object"),
    "mapped read-only": Kind(_mapped, target="read-only"),
    "expanded": Kind(lambda n: torch.ones(1).expand(n), "not contiguous", "not contiguous"),
    "every other": Kind(lambda n: _values(2 * n)[::2], "not contiguous", "not contiguous"),
    "uninitialized": _refused(lambda _: torch.nn.UninitializedParameter(), "not initialized", "UninitializedParameter"),
    "functional": _refused(lambda n: torch._to_functional_tensor(_values(n)), "functional tensor"),
    "vmap": _refused(functools.partial(_caught, torch.func.vmap), "torch.func"),
    "grad": _refused(functools.partial(_caught, torch.func.grad), "torch.func"),
    "fake": _refused(_fake, "fake tensor"),
    "wrapper": _refused(lambda n: Hollow(_values(n)), "__torch_dispatch__ (Hollow)"),
    "masked": _refused(
        lambda n: torch.masked.masked_tensor(_values(n), torch.ones(n, dtype=torch.bool)), "masked tensor"
    ),
    "DTensor": _refused(_distributed, "DTensor"),
    "sparse COO": _refused(lambda n: _values(n).to_sparse(), "sparse"),
    "sparse CSR": _refused(lambda n: torch.ones(n, n).to_sparse_csr(), "sparse"),
    "sparse CSC": _refused(lambda n: torch.ones(n, n).to_sparse_csc(), "sparse"),
    "sparse BSR": _refused(lambda n: torch.ones(n, n).to_sparse_bsr((2, 2)), "sparse"),
    "mkldnn": _refused(lambda n: _values(n).to_mkldnn(), "mkldnn"),
    "nested": _refused(lambda n: torch.nested.nested_tensor([_values(n), _values(2)]), "nested tensor"),
    "jagged": _refused(
        lambda n: torch.nested.nested_tensor([_values(n), _values(2)], layout=torch.jagged),
        "nested tensor",
        "_rebuild_from_type_v2",
    ),
    "quantized": _refused(lambda n: torch.quantize_per_tensor(_values(n), 0.5, 1, torch.quint8), "quantized", ""),
    "quantized by channel": _refused(
        lambda n: torch.quantize_per_channel(
            torch.ones(n, 2), torch.tensor([0.5, 0.25]), torch.tensor([1, 2]), 1, torch.qint8
        ),
        "quantized",
        "",
    ),
    "quantized by floats": _refused(
        lambda n: torch.quantize_per_channel(
            torch.ones(n, 2), torch.tensor([0.5, 0.25]), torch.tensor([1.0, 2.0]), 1, torch.quint8
        ),
        "quantized",
    ),
    "zero-tensor": _refused(lambda n: torch._efficientzerotensor(n), "zero-tensor"),
    "meta": _refused(lambda n: torch.empty(n, device="meta"), "meta tensor"),
    "storage resized to 0": _refused(lambda n: _shrunk(n, 0), "storage"),
    "storage too small": _refused(lambda n: _shrunk(n, 8), "storage"),
    "no tensor": _refused(lambda n: [1.0] * n, "where a tensor is expected", ""),  # type: ignore[arg-type, return-value]
}

if not hasattr(torch.UntypedStorage, "resizable"):  # older releases do not tell whose memory it is
    del KINDS["constant"], KINDS["mapped read-only"]


def plain(tensor: torch.Tensor) -> torch.Tensor:
    """The numbers that ``tensor`` stands for."""
    return tensor.detach().clone().resolve_conj().resolve_neg().as_subclass(torch.Tensor)


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


SOURCES = (send, send_tensor, batch_of_sends, broadcast, all_gather, all_gather_into_tensor, gather, scatter,
           reduce_scatter, reduce_scatter_tensor, all_to_all, all_to_all_single)  # fmt: skip

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


TARGETS = (recv, recv_from_anybody, batch_of_receives, broadcast_to, all_reduce, reduce, all_gather_to, all_gather_into,
           gather_to, scatter_to, reduce_scatter_to, reduce_scatter_tensor_to, all_to_all_to,
           all_to_all_single_to)  # fmt: skip
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
                like = _values(n)
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
                before = plain(strange) if kind.make in (_constant, _mapped) else None
                sent = _complex(n) if getattr(strange, "dtype", None) is torch.complex64 else _values(n)
                KEPT[:] = [sent]
                call = _refusing(operation, w, strange, sent)
                await _refuses(call, kind.target, operation.__name__)
                assert before is None or torch.equal(plain(strange), before)
        else:
            KEPT[:] = [strange]
            s = _values(n) * 7
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


def _worker(link: Link, store: str, rank: int, name: str) -> float:
    import asyncio

    warnings.simplefilter("ignore")
    kind = KINDS[name]
    kind.make(SMALL)

    async def main() -> float:
        async with MultiWorld() as mw:
            w = await mw.join("w", rank, 2, store=store, op_timeout=20)
            for n in (SMALL, LARGE):
                await _read(w, kind, n)
                await w.barrier()
                await _written(w, kind, n)
                await w.barrier()
            await _as_object(w, kind)
            total = torch.ones(1)
            await w.all_reduce(total)
            return total.item()

    return asyncio.run(main())


def _made_here(name: str) -> str | None:
    """Why this torch has no such tensor; None if it has."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            KINDS[name].make(SMALL)
        except (AttributeError, TypeError, RuntimeError, NotImplementedError, pytest.skip.Exception) as error:
            return str(error).partition("\n")[0]
    return None


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_of_tensor_in_every_operation(store: str, name: str) -> None:
    why = _made_here(name)
    if why is not None:
        pytest.skip(f"this torch has no such tensor: {why}")
    with cluster() as c:
        for rank in range(2):
            c.start(_worker, store, rank, name)
        assert c.results(60) == [2.0, 2.0]
