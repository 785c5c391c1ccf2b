"""The one thread of a process group that gives all-reduces to the switch, in the order of the calls."""

from __future__ import annotations

import contextlib
import logging
import queue
import threading
import time
from typing import Any

import torch
import torch.distributed as dist

from multiworld.switchml.errors import SwitchJobFailed, SwitchJobTimeout, SwitchMLClosed, SwitchMLError
from multiworld.switchml.library import Library, Outcome, release
from multiworld.switchml.statistics import COUNTS
from multiworld.switchml.work import SwitchWork

logger = logging.getLogger(__name__)
#: What the client library may still use after a timeout: for the life of the process.
_kept: list[torch.Tensor] = []


class Lane:
    """All-reduces one after the other, on all ranks in the same order.

    Args:
        library: the client library, started.
        seconds: how long one may take on the switch.
        gloo: a group of this lane's own for confirmations and repetitions; None if a failure is an error.
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
        """Begin the all-reduce of one tensor, in place."""
        work = SwitchWork(tensor)
        with self._lock:
            if self._closed:
                work.finish(SwitchMLClosed(what="the process group was destroyed", operation="all_reduce"))
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
        release()

    def _run(self) -> None:
        while (entry := self._queue.get()) is not None:
            tensor, ready, work = entry
            try:
                self._reduce(tensor, ready)
            except Exception as error:  # noqa: BLE001 - it is the caller's
                COUNTS.failed()
                work.finish(error)
            else:
                work.finish()

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
            raise SwitchMLClosed(what="the process group was destroyed", operation="all_reduce")
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
        with contextlib.ExitStack() as stack:
            stack.enter_context(torch.cuda.device(tensor.device))
            torch.cuda.current_stream().synchronize()
