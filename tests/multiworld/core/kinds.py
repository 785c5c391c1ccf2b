"""Every kind of tensor that a program may pass, and what becomes of it."""

from __future__ import annotations

import array
import functools
import mmap
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

SMALL, LARGE = 4, 300_000  # the larger one goes through the backend
Make = Callable[[int], torch.Tensor]


def values(n: int) -> torch.Tensor:
    return torch.arange(1, n + 1, dtype=torch.float32) % 9 + 1


def complex_values(n: int) -> torch.Tensor:
    return torch.complex(values(n), -values(n))


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

    return FakeTensorMode().from_tensor(values(n))


def _caught(transform: Callable[..., Any], n: int) -> torch.Tensor:
    """A tensor as a transform of torch.func hands it to its function."""
    seen: list[torch.Tensor] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        seen.append(x)
        return x.sum()

    transform(function)(torch.stack([values(n)] * 2))
    return seen[0]


def _shrunk(n: int, nbytes: int) -> torch.Tensor:
    tensor = values(n)
    tensor.untyped_storage().resize_(nbytes)
    return tensor


def _inference(n: int) -> torch.Tensor:
    with torch.inference_mode():
        return values(n)


def mapped(n: int) -> torch.Tensor:
    with tempfile.TemporaryFile() as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        array.array("f", values(n).tolist()).tofile(file)
        file.flush()
        return torch.frombuffer(mmap.mmap(file.fileno(), 4 * n, prot=mmap.PROT_READ), dtype=torch.float32)


def constant(n: int) -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.frombuffer(array.array("f", values(n).tolist()).tobytes(), dtype=torch.float32)


def _distributed(n: int) -> torch.Tensor:
    tensor = pytest.importorskip("torch.distributed.tensor")
    spec = pytest.importorskip("torch.distributed.tensor._dtensor_spec")
    mesh = torch.distributed.device_mesh.DeviceMesh("cpu", [0], _init_backend=False, _rank=0)
    meta = spec.TensorMeta(torch.Size([n]), (1,), torch.float32)
    return tensor.DTensor(values(n), spec.DTensorSpec(mesh, (tensor.Replicate(),), meta), requires_grad=False)


@dataclass(frozen=True)
class Kind:
    """A kind of tensor, and its outcome: empty for the right numbers, else words of the refusal."""

    make: Make
    source: str = ""
    target: str = ""
    obj: str = ""


def _refused(make: Make, words: str, obj: str | None = None) -> Kind:
    return Kind(make, words, words, words if obj is None else obj)


LAZY = "lazily conjugated or negated"
KINDS = {
    "plain": Kind(values),
    "parameter": Kind(lambda n: torch.nn.Parameter(values(n))),
    "buffer": Kind(lambda n: torch.nn.Buffer(values(n))),
    "requires grad": Kind(lambda n: values(n).requires_grad_()),
    "of autograd": Kind(lambda n: values(n).requires_grad_() * 2),
    "inference": Kind(_inference),
    "shared memory": Kind(lambda n: values(n).share_memory_()),
    "numpy's memory": Kind(lambda n: torch.from_numpy(values(n).numpy().copy())),
    "in the middle": Kind(lambda n: torch.cat([values(n)] * 3)[n : 2 * n]),
    "stride 0, size 1": Kind(lambda n: values(n).as_strided((1, n), (0, 1))),
    "subclass": Kind(lambda n: values(n).as_subclass(Marked), obj="_rebuild_from_type_v2"),
    "conjugated": Kind(lambda n: complex_values(n).conj(), target=LAZY),
    "negated": Kind(lambda n: torch._neg_view(values(n)), target=LAZY),
    "constant": Kind(constant, target="bytes object"),
    "mapped read-only": Kind(mapped, target="read-only"),
    "expanded": Kind(lambda n: torch.ones(1).expand(n), "not contiguous", "not contiguous"),
    "every other": Kind(lambda n: values(2 * n)[::2], "not contiguous", "not contiguous"),
    "uninitialized": _refused(lambda _: torch.nn.UninitializedParameter(), "not initialized", "UninitializedParameter"),
    "functional": _refused(lambda n: torch._to_functional_tensor(values(n)), "functional tensor"),
    "vmap": _refused(functools.partial(_caught, torch.func.vmap), "torch.func"),
    "grad": _refused(functools.partial(_caught, torch.func.grad), "torch.func"),
    "fake": _refused(_fake, "fake tensor"),
    "wrapper": _refused(lambda n: Hollow(values(n)), "__torch_dispatch__ (Hollow)"),
    "masked": _refused(
        lambda n: torch.masked.masked_tensor(values(n), torch.ones(n, dtype=torch.bool)), "masked tensor"
    ),
    "DTensor": _refused(_distributed, "DTensor"),
    "sparse COO": _refused(lambda n: values(n).to_sparse(), "sparse"),
    "sparse CSR": _refused(lambda n: torch.ones(n, n).to_sparse_csr(), "sparse"),
    "sparse CSC": _refused(lambda n: torch.ones(n, n).to_sparse_csc(), "sparse"),
    "sparse BSR": _refused(lambda n: torch.ones(n, n).to_sparse_bsr((2, 2)), "sparse"),
    "mkldnn": _refused(lambda n: values(n).to_mkldnn(), "mkldnn"),
    "nested": _refused(lambda n: torch.nested.nested_tensor([values(n), values(2)]), "nested tensor"),
    "jagged": _refused(
        lambda n: torch.nested.nested_tensor([values(n), values(2)], layout=torch.jagged),
        "nested tensor",
        "_rebuild_from_type_v2",
    ),
    "quantized": _refused(lambda n: torch.quantize_per_tensor(values(n), 0.5, 1, torch.quint8), "quantized", ""),
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
