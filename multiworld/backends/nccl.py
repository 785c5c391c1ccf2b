"""Communicators of our own, made by NVIDIA's bindings ``nccl4py``: no watchdog of torch's, on any wheel.

They are non-blocking: no call of NCCL waits for a peer. Compiled code calls the functions that the bindings have found
(``engine/launch``), and asks for what is in progress until it is done, or the communicator has failed.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from enum import IntEnum
from typing import Any

import torch
import torch.distributed as dist

from multiworld.backends import cuda
from multiworld.backends.device_driver import Call, DeviceDriver, Work
from multiworld.backends.gathered import Gathered
from multiworld.engine import library
from multiworld.matching.driver import DriverRefused

ID_BYTES = 128
_ID_KEY = "mw/nccl-id"
#: non-blocking communicators, and ``ncclCommFinalize``
_OLDEST = 21400
#: the first version with ``ncclCommRevoke``
REVOKES_FROM = 22800
#: functions that are called where there are any
_OPTIONAL = frozenset({"ncclCommRevoke"})

_DTYPES = {torch.int8: 0, torch.uint8: 1, torch.bool: 1, torch.int32: 2, torch.int64: 4}
_DTYPES |= {torch.float16: 6, torch.float32: 7, torch.float64: 8, torch.bfloat16: 9}
_NEW_DTYPES = {"uint32": 3, "uint64": 5}
_PARTS = {torch.complex64: torch.float32, torch.complex128: torch.float64}
_SUM, _PRODUCT, _MAX, _MIN, _AVERAGE = range(5)


@functools.cache
def bindings() -> Any:
    """The bindings' module.

    Raises:
        ImportError: they are not installed, or NCCL's library is not found.
    """
    return importlib.import_module("nccl.bindings.nccl")


@functools.cache
def unavailable() -> str | None:
    """Why the bindings cannot be used here; None if they can."""
    try:
        version = int(bindings().get_version())
    except Exception as error:  # noqa: BLE001 - of the loader's many types
        return f"nccl4py cannot be used: {str(error).splitlines()[0] if str(error) else type(error).__name__}"
    if version < _OLDEST:
        return f"NCCL {printed(version)} is too old: non-blocking communicators came with {printed(_OLDEST)}"
    return None


def printed(version: int) -> str:
    """NCCL's number of a version as people write it."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def _dtype(tensor: torch.Tensor) -> int:
    code = _DTYPES.get(tensor.dtype)
    if code is None:
        code = next((n for name, n in _NEW_DTYPES.items() if tensor.dtype is getattr(torch, name, None)), None)
    if code is None:
        raise DriverRefused(f"NCCL has no {tensor.dtype}")
    return code


def _reduced(tensor: torch.Tensor, op: Any) -> tuple[int, int, int]:
    """Number of elements, their type and the reduction, as NCCL counts."""
    reduction = _reduction(op)
    if tensor.dtype is torch.bool:  # as numbers 0 and 1, whose sum has to stay 1
        logical = {_SUM: _MAX, _MAX: _MAX, _PRODUCT: _MIN, _MIN: _MIN}
        if reduction not in logical:
            raise DriverRefused(f"NCCL has no {op} of torch.bool")
        return tensor.numel(), _DTYPES[torch.uint8], logical[reduction]
    part = _PARTS.get(tensor.dtype)
    if part is not None and reduction in (_SUM, _AVERAGE):
        return 2 * tensor.numel(), _DTYPES[part], reduction
    return tensor.numel(), _dtype(tensor), reduction


def _reduction(op: Any) -> int:
    known = dist.ReduceOp.SUM, dist.ReduceOp.PRODUCT, dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.AVG
    for number, one in enumerate(known):
        if op == one:
            return number
    raise DriverRefused(f"NCCL has no reduction {op}")


class _Kind(IntEnum):
    """See ``Call::Kind`` in ``engine/launch/communicator.h``."""

    SEND, RECV, BROADCAST, ALL_REDUCE, REDUCE, ALL_GATHER, REDUCE_SCATTER, COPY = range(8)


class NcclDriver(DeviceDriver):
    """See ``Driver``."""

    name = "nccl"

    def version(self) -> str:
        return f"NCCL {printed(int(bindings().get_version()))}"

    def connect(self, stream: int) -> None:
        """See ``DeviceDriver.connect``.

        Raises:
            BackendFailed: the library lacks a function.
        """
        nccl, us = bindings(), self._us
        config = nccl.Config()
        config.blocking = 0
        with self._functions_needed():
            functions = self._functions()
            comm = nccl.comm_init_rank_config(us.size, self._identity(), us.place, config)
        self._launcher.open(functions, stream, int(comm))
        self._launcher.settle()

    def transfers(self, adopt: Callable[[int], None]) -> Any:
        self._adopt = adopt
        return self._launcher

    def abort_communicator(self) -> None:
        self._launcher.abort()

    def finalize(self) -> None:
        self._launcher.finalize()

    # operations

    def broadcast(self, tensor: torch.Tensor, root: int, *, after: Any = None) -> Work:
        return self._calls(tensor, after, lambda: [_call(_Kind.BROADCAST, tensor, tensor, peer=root)])

    def all_reduce(self, tensor: torch.Tensor, op: Any, *, after: Any = None) -> Work:
        return self._calls(tensor, after, lambda: [_reduction_call(_Kind.ALL_REDUCE, tensor, tensor, op)])

    def reduce(self, tensor: torch.Tensor, root: int, op: Any, *, after: Any = None) -> Work:
        return self._calls(tensor, after, lambda: [_reduction_call(_Kind.REDUCE, tensor, tensor, op, root)])

    def all_gather(self, outputs: Sequence[torch.Tensor], tensor: torch.Tensor, *, after: Any = None) -> Work:
        def prepare() -> tuple[Gathered, list[Call]]:
            gathered = Gathered(outputs)
            copies = [_copy(source, target) for source, target in gathered.pieces()]
            return gathered, [_call(_Kind.ALL_GATHER, tensor, gathered.whole), *copies]

        return self._start((outputs, tensor), after, None, prepare)

    def gather(self, outputs: Sequence[torch.Tensor], tensor: torch.Tensor, root: int, *, after: Any = None) -> Work:
        return self._calls(
            (outputs, tensor), after, lambda: [_send(tensor, root), *map(_recv, outputs, range(len(outputs)))]
        )

    def scatter(self, output: torch.Tensor, tensors: Sequence[torch.Tensor], root: int, *, after: Any = None) -> Work:
        return self._calls(
            (output, tensors), after, lambda: [*map(_send, tensors, range(len(tensors))), _recv(output, root)]
        )

    def reduce_scatter(self, output: torch.Tensor, tensor: torch.Tensor, op: Any, *, after: Any = None) -> Work:
        return self._calls((output, tensor), after, lambda: [_reduction_call(_Kind.REDUCE_SCATTER, tensor, output, op)])

    def all_to_all(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        *,
        after: Any = None,
    ) -> Work:
        sent, got = tensor.split(list(input_splits)), output.split(list(output_splits))
        places = range(self._us.size)
        return self._calls((output, tensor), after, lambda: [*map(_send, sent, places), *map(_recv, got, places)])

    def send(self, tensor: torch.Tensor, peer: int, *, after: Any = None) -> Work:
        return self._calls(tensor, after, lambda: [_send(tensor, peer)])

    def recv(self, tensor: torch.Tensor, peer: int, *, after: Any = None) -> Work:
        return self._calls(tensor, after, lambda: [_recv(tensor, peer)])

    def _calls(self, tensors: Any, after: Any, calls: Callable[[], list[Call]]) -> Work:
        """Launch one group of calls."""
        try:
            return self._start(tensors, after, calls())
        except DriverRefused as refused:
            work = Work(0, None, None, None)
            self._let_go(work, refused)
            return work

    # the making

    def _functions(self) -> dict[str, int]:
        """The addresses that compiled code calls: those that the bindings and torch call."""
        found = importlib.import_module("nccl.bindings._internal.nccl")
        names = [name for name in library.launch_functions() if name.startswith("nccl")]
        addresses = {name: int(found._inspect_function_pointer(f"__{name}")) for name in names}
        missing = [name for name in names if not addresses[name] and name not in _OPTIONAL]
        if missing:
            raise _MissingError(", ".join(missing))
        return addresses | cuda.functions()

    def _identity(self) -> Any:
        """The id that place 0 makes and all use."""
        if self._us.place == 0:
            identity = bindings().get_unique_id()
            self._store.set(_ID_KEY, ctypes.string_at(identity.ptr, ID_BYTES))
            return identity
        said = self._store.get(_ID_KEY)
        if len(said) != ID_BYTES:
            raise RuntimeError(f"an id of {len(said)} bytes, not {ID_BYTES}, came from the first member of the group")
        identity = bindings().UniqueId()
        ctypes.memmove(identity.ptr, said, ID_BYTES)
        return identity

    @contextlib.contextmanager
    def _functions_needed(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if not isinstance(error, _MissingError) and type(error).__name__ != "FunctionNotFoundError":
                raise
            raise self._us.failed(
                f"{self.version()} lacks a function that the driver needs: {error}",
                cause="NCCL's library is older than nccl4py expects, or another one was found first",
                remedy="install a newer nvidia-nccl package, or join with backend='torch-nccl'",
            ) from error


class _MissingError(RuntimeError):
    """A function of NCCL is not there."""


def _call(kind: _Kind, source: torch.Tensor, target: torch.Tensor, *, peer: int = 0) -> Call:
    return kind, source.data_ptr(), target.data_ptr(), source.numel(), _dtype(source), 0, peer


def _reduction_call(kind: _Kind, source: torch.Tensor, target: torch.Tensor, op: Any, root: int = 0) -> Call:
    count, dtype, reduction = _reduced(target, op)
    return kind, source.data_ptr(), target.data_ptr(), count, dtype, reduction, root


def _send(tensor: torch.Tensor, peer: int) -> Call:
    return _Kind.SEND, tensor.data_ptr(), 0, tensor.numel(), _dtype(tensor), 0, peer


def _recv(tensor: torch.Tensor, peer: int) -> Call:
    return _Kind.RECV, 0, tensor.data_ptr(), tensor.numel(), _dtype(tensor), 0, peer


def _copy(source: torch.Tensor, target: torch.Tensor) -> Call:
    return _Kind.COPY, source.data_ptr(), target.data_ptr(), source.nbytes, 0, 0, 0
