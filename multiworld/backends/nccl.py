"""Communicators of our own, through NVIDIA's bindings ``nccl4py``: no watchdog of torch's, on any wheel.

They are non-blocking: no call of NCCL waits for a peer. What is in progress is asked for until it is done, or the
communicator has failed.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist

from multiworld.backends.device_communicator import Cancelled, Gathered, Member
from multiworld.backends.setup_store import SetupStore
from multiworld.matching.driver import DriverRefused

logger = logging.getLogger(__name__)

_SUCCESS, _IN_PROGRESS = 0, 7
ID_BYTES = 128
_ID_KEY = "mw/nccl-id"
#: non-blocking communicators, and ``ncclCommFinalize``
_OLDEST = 21400
#: the first version with ``ncclCommRevoke``
REVOKES_FROM = 22800
#: how long a revoke may take before the abort
REVOKE_SECONDS = 0.2
#: what is in progress is looked at without a pause at first, since most of it takes less time than the shortest sleep
_SPIN_SECONDS = 100e-6
#: and then after pauses that grow
_FIRST_NAP, _LONGEST_NAP = 20e-6, 2e-3

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


class NcclCommunicator:
    """See ``Communicator``."""

    name = "nccl"

    def __init__(self, us: Member) -> None:
        self._us = us
        self._nccl = bindings()
        self._stream = 0
        self._comm: Any = None
        self._cancelled: Cancelled = lambda: False
        # Held in every call of NCCL that uses the communicator: an abort frees it.
        self._inside = threading.Lock()

    def version(self) -> str:
        return f"NCCL {printed(int(self._nccl.get_version()))}"

    def connect(self, store: SetupStore, stream: int, cancelled: Cancelled) -> None:
        """See ``Communicator.connect``.

        Raises:
            BackendFailed: the library lacks a function.
        """
        self._stream, self._cancelled = stream, cancelled
        config = self._nccl.Config()
        config.blocking = 0
        with self._functions_needed():
            identity = self._identity(store)
            self._comm = self._nccl.comm_init_rank_config(self._us.size, identity, self._us.place, config)
        self._settle()

    def failure(self) -> BaseException | None:
        code = self._state()
        return None if code in (_SUCCESS, _IN_PROGRESS) else RuntimeError(self._text(code))

    def outcome(self, handle: Any) -> BaseException | None:  # noqa: ARG002 - NCCL knows no single operations
        return None

    def abort(self) -> None:
        """See ``Communicator.abort``; while another thread is inside a call, waits for the end of that."""
        with self._inside:
            comm, self._comm = self._comm, None
        if comm is not None:
            self._revoke(comm)
            self._nccl.comm_abort(comm)

    def release(self) -> None:
        """Nothing is left of a communicator that was freed."""

    def finalize(self, cancelled: Cancelled) -> None:
        self._cancelled = cancelled
        with self._launch():
            self._nccl.comm_finalize(self._comm)
        with self._inside:
            comm, self._comm = self._comm, None
        if comm is not None:
            self._nccl.comm_destroy(comm)

    # operations

    def broadcast(self, tensor: torch.Tensor, root: int) -> None:
        at, count, dtype = tensor.data_ptr(), tensor.numel(), _dtype(tensor)
        with self._launch():
            self._nccl.broadcast(at, at, count, dtype, root, self._comm, self._stream)

    def all_reduce(self, tensor: torch.Tensor, op: Any) -> None:
        at, (count, dtype, reduction) = tensor.data_ptr(), _reduced(tensor, op)
        with self._launch():
            self._nccl.all_reduce(at, at, count, dtype, reduction, self._comm, self._stream)

    def reduce(self, tensor: torch.Tensor, root: int, op: Any) -> None:
        at, (count, dtype, reduction) = tensor.data_ptr(), _reduced(tensor, op)
        with self._launch():
            self._nccl.reduce(at, at, count, dtype, reduction, root, self._comm, self._stream)

    def all_gather(self, outputs: Sequence[torch.Tensor], tensor: torch.Tensor) -> None:
        count, dtype, gathered = tensor.numel(), _dtype(tensor), Gathered(outputs)
        with self._launch():
            self._nccl.all_gather(tensor.data_ptr(), gathered.whole.data_ptr(), count, dtype, self._comm, self._stream)
        gathered.spread()

    def gather(self, outputs: Sequence[torch.Tensor], tensor: torch.Tensor, root: int) -> None:
        dtype = _dtype(tensor)
        with self._launch(), self._group():
            self._send(tensor, dtype, root)
            for place, one in enumerate(outputs):
                self._recv(one, dtype, place)

    def scatter(self, output: torch.Tensor, tensors: Sequence[torch.Tensor], root: int) -> None:
        dtype = _dtype(output)
        with self._launch(), self._group():
            for place, one in enumerate(tensors):
                self._send(one, dtype, place)
            self._recv(output, dtype, root)

    def reduce_scatter(self, output: torch.Tensor, tensor: torch.Tensor, op: Any) -> None:
        count, dtype, reduction = _reduced(output, op)
        source, target = tensor.data_ptr(), output.data_ptr()
        with self._launch():
            self._nccl.reduce_scatter(source, target, count, dtype, reduction, self._comm, self._stream)

    def all_to_all(
        self, output: torch.Tensor, tensor: torch.Tensor, output_splits: Sequence[int], input_splits: Sequence[int]
    ) -> None:
        dtype = _dtype(tensor)
        sent, got = tensor.split(list(input_splits)), output.split(list(output_splits))
        with self._launch(), self._group():
            for place in range(self._us.size):
                self._send(sent[place], dtype, place)
                self._recv(got[place], dtype, place)

    def send(self, tensor: torch.Tensor, peer: int) -> None:
        dtype = _dtype(tensor)
        with self._launch():
            self._send(tensor, dtype, peer)

    def recv(self, tensor: torch.Tensor, peer: int) -> None:
        dtype = _dtype(tensor)
        with self._launch():
            self._recv(tensor, dtype, peer)

    def _send(self, tensor: torch.Tensor, dtype: int, peer: int) -> None:
        self._nccl.send(tensor.data_ptr(), tensor.numel(), dtype, peer, self._comm, self._stream)

    def _recv(self, tensor: torch.Tensor, dtype: int, peer: int) -> None:
        self._nccl.recv(tensor.data_ptr(), tensor.numel(), dtype, peer, self._comm, self._stream)

    # NCCL's ways

    @contextlib.contextmanager
    def _launch(self) -> Iterator[None]:
        """One launch; when the block is left, it is in the stream.

        Raises:
            ConnectionAbortedError: the communicator was aborted.
        """
        with self._inside:
            self._check_alive()
            yield
        self._settle()

    @contextlib.contextmanager
    def _group(self) -> Iterator[None]:
        """One launch of several operations. The group is the thread's own: it is closed whatever happens."""
        self._nccl.group_start()
        try:
            yield
        except BaseException:
            with contextlib.suppress(Exception):
                self._nccl.group_end()
            raise
        self._nccl.group_end()

    def _settle(self) -> None:
        """Wait until what was begun is done.

        Raises:
            RuntimeError: it failed.
            ConnectionAbortedError: the communicator has to be aborted first.
        """
        began, nap = time.perf_counter(), 0.0
        while (code := self._state()) == _IN_PROGRESS:
            if self._cancelled():
                raise ConnectionAbortedError("aborted while NCCL was at work")
            time.sleep(nap)
            if nap or time.perf_counter() - began > _SPIN_SECONDS:
                nap = min(2 * nap or _FIRST_NAP, _LONGEST_NAP)
        if code != _SUCCESS:
            raise RuntimeError(self._text(code))

    def _state(self) -> int:
        with self._inside:
            self._check_alive()
            return int(self._nccl.comm_get_async_error(self._comm))

    def _check_alive(self) -> None:
        if self._comm is None:
            raise ConnectionAbortedError("the communicator was aborted")

    def _revoke(self, comm: Any) -> None:
        """Stop what is under way, on all members, where NCCL can; freeing comes after that."""
        if comm is None or int(self._nccl.get_version()) < REVOKES_FROM:
            return
        try:
            self._nccl.comm_revoke(comm, 0)
            until = time.monotonic() + REVOKE_SECONDS
            while int(self._nccl.comm_get_async_error(comm)) == _IN_PROGRESS and time.monotonic() < until:
                time.sleep(_LONGEST_NAP)
        except Exception as error:  # noqa: BLE001 - the abort does it alone then
            logger.debug("nccl: no revoke: %s", error)

    def _identity(self, store: SetupStore) -> Any:
        """The id that place 0 makes and all use."""
        if self._us.place == 0:
            identity = self._nccl.get_unique_id()
            store.set(_ID_KEY, ctypes.string_at(identity.ptr, ID_BYTES))
            return identity
        said = store.get(_ID_KEY)
        if len(said) != ID_BYTES:
            raise RuntimeError(f"an id of {len(said)} bytes, not {ID_BYTES}, came from the first member of the group")
        identity = self._nccl.UniqueId()
        ctypes.memmove(identity.ptr, said, ID_BYTES)
        return identity

    @contextlib.contextmanager
    def _functions_needed(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if type(error).__name__ != "FunctionNotFoundError":
                raise
            raise self._us.failed(
                f"{self.version()} lacks a function that the driver needs: {error}",
                cause="NCCL's library is older than nccl4py expects, or another one was found first",
                remedy="install a newer nvidia-nccl package, or join with backend='torch-nccl'",
            ) from error

    def _text(self, code: int) -> str:
        detail = ""
        with contextlib.suppress(Exception), self._inside:
            detail = str(self._nccl.get_last_error(self._comm)).strip()
        return f"NCCL error {code}, {self._nccl.get_error_string(code)}{': ' if detail else ''}{detail}"
