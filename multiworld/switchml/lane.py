"""The client library of SwitchML, the thread of a process group that gives it all-reduces in order, their handles."""

from __future__ import annotations

import ctypes
import enum
import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from multiworld.errors import MultiWorldError
from multiworld.switchml.errors import (
    SwitchJobFailed,
    SwitchJobTimeout,
    SwitchMLClosed,
    SwitchMLError,
    SwitchMLUnavailable,
)
from multiworld.switchml.statistics import COUNTS

_INTERFACE = 1
_TYPES = {torch.float32: 0, torch.int32: 1}
_ERROR_BYTES = 1000


class Outcome(enum.IntEnum):
    """The ways in which an all-reduce ends; the numbers are those of ``shim.cpp``."""

    FINISHED = 0
    FAILED = 1
    TIMEOUT = 2
    STOPPED = 3


class Library:
    """The loaded shim.

    Raises:
        SwitchMLUnavailable: it cannot be loaded, or is of another version.
    """

    def __init__(self, path: Path) -> None:
        if not path.is_file():
            raise SwitchMLUnavailable(what=f"there is no compiled shim {path}")
        try:
            loaded = ctypes.CDLL(str(path))
            self._start, self._sum = loaded.mw_switchml_start, loaded.mw_switchml_sum
            #: stops the context; what is not done fails
            self.stop: Callable[[], object] = loaded.mw_switchml_stop
            interface = loaded.mw_switchml_interface()
        except (OSError, AttributeError) as error:
            raise SwitchMLUnavailable(what=f"the shim {path} cannot be loaded: {error}") from None
        if interface != _INTERFACE:
            what = f"the shim {path} has interface {interface}, needed is {_INTERFACE}"
            raise SwitchMLUnavailable(what=what, remedy="run 'python -m multiworld.switchml compile' again")
        self._sum.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int, ctypes.c_double)

    def start(self, config: str, rank: int, size: int) -> str:
        """Start the context; return why it did not start, empty if it did."""
        error = ctypes.create_string_buffer(_ERROR_BYTES)
        failed = self._start(config.encode(), rank, size, error, ctypes.c_size_t(_ERROR_BYTES))
        return error.value.decode("utf-8", "replace") if failed else ""

    def sum(self, given: torch.Tensor, result: torch.Tensor, seconds: float) -> Outcome:
        """Sum a contiguous tensor of this host over all ranks into ``result``, which may be the same tensor."""
        pointers = (given.data_ptr(), result.data_ptr())
        return Outcome(self._sum(*pointers, given.numel(), _TYPES[given.dtype], seconds))


#: held by the process group that has the one context of this process
OWNED = threading.Lock()


logger = logging.getLogger(__name__)
#: What the client library may still use after a timeout: for the life of the process.
_kept: list[torch.Tensor] = []


_Work: Any = getattr(dist, "Work", None) or dist._Work
#: The newest works that had no waiter yet. In older releases of torch, C++ callers hold the C++ part of a work
#: only: they would wait for the base class, and for ever, if the Python part were gone.
_unwaited: dict[SwitchWork, None] = {}
_KEPT = 256
_DESTROYED = "the process group was destroyed"
_keeping = threading.Lock()


class SwitchWork(_Work):  # type: ignore[misc]
    """One all-reduce: pending until the thread that does it has set its ``outcome``."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__()
        self._tensor = tensor
        self.outcome: Future[None] = Future()
        self._lock = threading.Lock()
        self._future: torch.futures.Future[Any] | None = None
        with _keeping:
            _unwaited[self] = None
            if len(_unwaited) > _KEPT:
                del _unwaited[next(iter(_unwaited))]

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Block until it is done; ``timedelta(0)`` is without a limit of its own: the operation has one.

        Raises:
            SwitchJobFailed: the switch did not do it, or ``SwitchJobTimeout``: not in time.
        """
        seconds = timeout.total_seconds() if timeout else None
        wait([self.outcome], seconds)
        if not self.outcome.done():
            what = f"an all-reduce was not done within {seconds} s"
            raise SwitchJobTimeout(what=what, timeout=seconds or 0.0, operation="wait")
        self._let_go()
        error = self.outcome.exception()
        if isinstance(error, MultiWorldError):
            raise error.with_context()  # a copy: an exception that is raised twice gathers tracebacks
        if error is not None:
            raise error
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        return self.outcome.done()

    def is_success(self) -> bool:
        return self.outcome.done() and self.outcome.exception() is None

    def exception(self) -> BaseException | None:
        """Why it failed; None if it did not."""
        return self.outcome.exception() if self.outcome.done() else None

    def result(self) -> list[torch.Tensor]:
        """The tensor that was given, with the sums in it, in a list."""
        return [self._tensor]

    def get_future(self) -> Any:
        """A future of ``result()``; an error in it is a ``RuntimeError`` with the text of ours."""
        with self._lock:
            if self._future is None:
                devices = [self._tensor.device] if self._tensor.is_cuda else None
                first: torch.futures.Future[Any] = torch.futures.Future(devices=devices)
                # Only an exception of a callback is one for C++, too: set_exception() sets a value.
                self._future = first.then(self._result_or_error)
                self.outcome.add_done_callback(lambda _: first.set_result(self.result()))
        self._let_go()
        return self._future

    def _let_go(self) -> None:
        with _keeping:
            _unwaited.pop(self, None)

    def _result_or_error(self, _: Any) -> list[torch.Tensor]:
        self.outcome.result()
        return self.result()


class Lane:
    """All-reduces one after the other, on all ranks in the same order, each for at most ``seconds`` on the switch.
    ``gloo`` is a group of this lane's own for confirmations and repetitions; None if a failure is an error.
    """

    def __init__(self, library: Library, seconds: float, gloo: Any | None) -> None:
        self._library, self._seconds, self._gloo = library, seconds, gloo
        self._queue: queue.SimpleQueue[tuple[torch.Tensor, Any, SwitchWork] | None] = queue.SimpleQueue()
        self._given_up: SwitchMLError | None = None
        self._closed = False
        self._last: torch.Tensor | None = None
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="multiworld-switchml", daemon=True)
        self._thread.start()

    def submit(self, tensor: torch.Tensor) -> SwitchWork:
        work = SwitchWork(tensor)
        with self._lock:
            if self._closed:
                work.outcome.set_exception(SwitchMLClosed(what=_DESTROYED, operation="all_reduce"))
            else:
                self._queue.put((tensor.detach(), _now(tensor), work))
        return work

    def close(self) -> None:
        """Stop the switch and end the thread; what is not done fails."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._library.stop()
        self._queue.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join(self._seconds)
        OWNED.release()

    def _run(self) -> None:
        while (entry := self._queue.get()) is not None:
            tensor, ready, work = entry
            try:
                self._reduce(tensor, ready)
            except Exception as error:  # noqa: BLE001 - it is the caller's
                COUNTS.failed()
                work.outcome.set_exception(error)
            else:
                work.outcome.set_result(None)

    def _reduce(self, tensor: torch.Tensor, ready: Any) -> None:
        if ready is not None:
            ready.synchronize()
        if self._gloo is None:
            self._by_switch(tensor)
            return
        before = self._given_up is not None
        if before or not self._confirmed(tensor, self._gloo):
            COUNTS.gloo([tensor], "after failure" if before else "failure")
            self._gloo.allreduce([tensor]).wait()
            _finish_copies(tensor)

    def _by_switch(self, tensor: torch.Tensor) -> None:
        """Sum in place where the library can reach the tensor; a failure is the end of this lane."""
        if self._closed:
            raise SwitchMLClosed(what=_DESTROYED, operation="all_reduce")
        if self._given_up is not None:
            raise self._given_up.with_context()
        host = tensor if _plain(tensor) else _host_copy(tensor)
        began = time.monotonic()
        if (error := self._sum(host, host)) is not None:
            self._given_up = error
            raise error
        COUNTS.delegated(tensor, time.monotonic() - began)
        _copy_back(host, tensor)

    def _confirmed(self, tensor: torch.Tensor, gloo: Any) -> bool:
        """Sum into other memory, and take the result only if the switch did it on all ranks."""
        host = tensor if _plain(tensor) else _host_copy(tensor)
        result = torch.empty_like(host)
        began = time.monotonic()
        error = self._sum(host, result)
        took = time.monotonic() - began
        good = torch.tensor([int(error is None)])
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MIN
        gloo.allreduce([good], options).wait()
        self._last = good  # until the next one: Gloo's thread must not free a tensor of Python while the group ends
        if good.item():
            COUNTS.delegated(tensor, took)
            _copy_back(result, tensor)
            return True
        self._given_up = error or SwitchJobFailed(what="the switch failed on another rank", operation="all_reduce")
        logger.warning("switchml: all-reduces go to Gloo from now on: %s", self._given_up)
        return False

    def _sum(self, given: torch.Tensor, result: torch.Tensor) -> SwitchMLError | None:
        outcome = self._library.sum(given, result, self._seconds)
        if outcome is Outcome.FINISHED:
            return None
        what = f"an all-reduce of {given.numel()} elements of {given.dtype}"
        if self._closed:
            return SwitchMLClosed(what=f"{what} was not done when the process group was destroyed")
        if outcome is Outcome.TIMEOUT:
            _kept.extend((given, result))
            what += f" was not done within {self._seconds} s"
            return SwitchJobTimeout(what=what, timeout=self._seconds, operation="all_reduce")
        return SwitchJobFailed(what=f"{what} failed", operation="all_reduce")


def _now(tensor: torch.Tensor) -> Any | None:
    """Return an event to wait for until the tensor has its values; None for one of the host, which has them."""
    if not tensor.is_cuda:
        return None
    with torch.cuda.device(tensor.device):
        event = torch.cuda.Event()
        event.record()
    return event


def _plain(tensor: torch.Tensor) -> bool:
    return bool(tensor.device.type == "cpu" and tensor.is_contiguous())


def _host_copy(tensor: torch.Tensor) -> torch.Tensor:
    host = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
    return host.copy_(tensor)


def _copy_back(result: torch.Tensor, tensor: torch.Tensor) -> None:
    if result.data_ptr() != tensor.data_ptr():
        tensor.copy_(result)
        _finish_copies(tensor)


def _finish_copies(tensor: torch.Tensor) -> None:
    """Wait for the copies of this thread: then the result is there for every stream."""
    if tensor.is_cuda:
        torch.cuda.current_stream(tensor.device).synchronize()
