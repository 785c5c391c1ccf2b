"""PyTorch's modes around an operation change nothing of it; inside a transform it is refused."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import pytest
import torch
from procs import log_shown, shared_pool

from multiworld import InvalidArgument, MultiWorld, TensorMismatch
from multiworld.lab.context import Context
from multiworld.matching.membership import Membership
from multiworld.matching.protocol import CODES
from multiworld.process.torch_modes import without_torch_modes
from multiworld.tensors.shapes import shape_bytes, with_shape


def _fake() -> AbstractContextManager[Any]:
    from torch._subclasses.fake_tensor import FakeTensorMode

    return FakeTensorMode()


def _counting() -> AbstractContextManager[Any]:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Counting(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            raise AssertionError(f"{function} was seen by the caller's mode")

    return Counting()


@contextlib.contextmanager
def _default_device() -> Iterator[None]:
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


Both = Callable[..., list[Any]]


async def _in_a_thread(context: Context, function: Callable[..., Any], *args: Any) -> Any:
    return await asyncio.to_thread(function, context, *args)


@pytest.fixture(scope="module")
def both() -> Iterator[Both]:
    """Two workers for all rows: what modes and transforms load takes seconds."""
    workers = [shared_pool().worker() for _ in range(2)]

    def both(function: Callable[..., Any], store: str, *args: Any) -> list[Any]:
        running = [worker.start(_in_a_thread, function, store, rank, *args) for rank, worker in enumerate(workers)]
        return [one.result(60) for one in running]

    with log_shown(shared_pool()):
        yield both
    shared_pool().dismiss(*workers)


MODES: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "FakeTensorMode": _fake,
    "a TorchDispatchMode": _counting,
    "device meta": lambda: torch.device("meta"),
    "default device meta": _default_device,
    "inference mode": torch.inference_mode,
    "no grad": torch.no_grad,
}


def _values(n: int) -> torch.Tensor:
    return torch.arange(1, n + 1, dtype=torch.float32, device="cpu") % 9


def _operations(g: Any, n: int, mode: Callable[[], AbstractContextManager[Any]]) -> list[tuple[Any, Any]]:
    """Return what arrived and what should have; tensors are made outside of the mode, the calls are in it."""
    x, expected, total = _values(n), _values(n), _values(n)
    outs, half, scattered = [torch.zeros(n) for _ in range(2)], torch.zeros(n // 2), torch.zeros(n)
    obj = {"t": x, "n": 5}
    with mode():
        if g._group.rank == 0:
            g.send(x, 1)
            g.send_tensor(x, 1)
            g.send_object(obj, 1)
            got, told, objected = x, x, obj
        else:
            got = outs[0]
            g.recv(got, 0)
            told, objected = g.recv_tensor(0), g.recv_object(0)
        g.all_reduce(total)
        g.reduce_scatter_tensor(half, x)
        g.scatter(scattered, [x, x] if g._group.rank == 0 else None, 0)
        gathered = g.all_gather_object(obj)
        g.all_gather(outs, x)
    part = (expected * 2).chunk(2)[g._group.rank]
    pairs = [(got, expected), (told, expected), (objected["t"], expected), (total, expected * 2), (half, part)]
    return [*pairs, (scattered, expected), *((out, expected) for out in outs), *((o["t"], expected) for o in gathered)]


def _in_modes(context: Context, store: str, rank: int, name: str) -> bool:
    with MultiWorld() as mw:
        w = mw.sync.join("w", rank, 2, store=store, op_timeout=60)
        for n in (4, 300_000):
            for got, expected in _operations(w.sync, n, MODES[name]):
                assert type(got) is torch.Tensor, (type(got), n)
                assert got.device.type == "cpu"
                assert torch.equal(got, expected)
        return True


@pytest.mark.parametrize("name", MODES)
def test_a_mode_of_the_caller_changes_nothing(both: Both, store: str, name: str) -> None:
    assert both(_in_modes, store, name) == [True, True]


def _beside_a_mode(context: Context, store: str, rank: int, name: str) -> Any:
    """A coroutine of the same loop holds a mode while a message arrives for another."""

    async def main() -> Any:
        async with MultiWorld() as mw:
            w = await mw.join("w", rank, 2, store=store, op_timeout=60)
            if rank == 0:
                await w.recv(torch.zeros(1), 1)  # the mode is on there
                await w.send_tensor(_values(300_000), 1)
                await w.all_reduce(torch.ones(4))
                return True
            receiving = asyncio.ensure_future(w.recv_tensor(0))
            summing, total = None, torch.ones(4)
            await asyncio.sleep(0)
            one = torch.ones(1)
            with MODES[name]():
                await w.send(one, 0)
                summing = asyncio.ensure_future(w.all_reduce(total))
                await asyncio.wait([receiving, summing], timeout=60)
            return torch.equal(receiving.result(), _values(300_000)) and torch.equal(total, torch.full((4,), 2.0))

    return asyncio.run(main())


@pytest.mark.parametrize("name", ["FakeTensorMode", "device meta", "inference mode"])
def test_a_mode_of_another_coroutine_changes_nothing(both: Both, store: str, name: str) -> None:
    assert both(_beside_a_mode, store, name) == [True, True]


def _in_transforms(context: Context, store: str, rank: int) -> float:
    with MultiWorld() as mw:
        w = mw.sync.join("w", rank, 2, store=store, op_timeout=60)
        captured = torch.ones(3)
        w.sync.all_reduce(captured)  # it is known to be plain from here on

        def function(x: torch.Tensor) -> torch.Tensor:
            for call in (
                lambda: w.sync.broadcast(captured, 0),
                lambda: w.sync.send(captured, 1 - rank),
                lambda: w.sync.all_reduce(captured),
                lambda: w.sync.recv_tensor(1 - rank),
                lambda: w.sync.send_object(1, 1 - rank),
                lambda: w.sync.barrier(),
            ):
                with pytest.raises(InvalidArgument, match="inside a transform"):
                    call()
            return x.sum()

        torch.func.vmap(function)(torch.ones(2, 3))
        torch.func.grad(function)(torch.ones(3))
        total = torch.ones(1)
        w.sync.all_reduce(total)
        return total.item()


def test_inside_a_transform_it_is_refused(both: Both, store: str) -> None:
    assert both(_in_transforms, store) == [2.0, 2.0]


# what recv_tensor makes of bytes

US = Membership("w", 0, 2, 1, "gloo", 1.0, 1 << 20)


def _message(payload: bytes, shape: tuple[int, ...], dims: int | None = None) -> torch.Tensor:
    tail = struct.pack(f"<{len(shape)}qB", *shape, len(shape) if dims is None else dims)
    return torch.tensor(list(payload + tail), dtype=torch.uint8)


F32 = CODES[torch.float32]


@pytest.mark.parametrize(
    ("dtype", "message"),
    [
        (F32, _message(bytes(8), (3,))),
        (F32, _message(bytes(8), (1,))),
        (F32, _message(bytes(7), (2,))),
        (F32, _message(bytes(8), (-2,))),
        (F32, _message(bytes(8), (-1, -2))),
        (F32, _message(b"", (2**62, 4))),
        (F32, _message(b"", (2**63 - 1, 2**63 - 1))),
        (F32, _message(bytes(8), (2,), 200)),
        (F32, _message(bytes(8), (2,), 0)),
        (F32, torch.zeros(0, dtype=torch.uint8)),
        (250, _message(bytes(8), (2,))),
    ],
)
def test_a_shape_that_does_not_fit_its_bytes_is_a_typed_error(dtype: int, message: torch.Tensor) -> None:
    with pytest.raises(TensorMismatch, match="rank 1 sent") as caught:
        with_shape(US, 1, dtype, message)
    assert (caught.value.world, caught.value.generation, caught.value.rank) == ("w", 1, 0)


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (2, 3), (1,) * 30])
def test_a_shape_arrives(shape: tuple[int, ...]) -> None:
    tensor = torch.rand(shape)
    message = torch.cat(
        [tensor.reshape(-1).view(torch.uint8), torch.tensor(list(shape_bytes(tensor)), dtype=torch.uint8)]
    )
    assert torch.equal(with_shape(US, 1, F32, message), tensor)


def test_without_a_mode_torch_loads_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch imports modules there, and a message of a process without free descriptors would fail."""
    from torch.utils import _python_dispatch

    def loads() -> None:
        raise AssertionError("no mode was on")

    monkeypatch.setattr(_python_dispatch, "_disable_current_modes", loads)
    with without_torch_modes():
        assert torch.ones(2).sum() == 2
