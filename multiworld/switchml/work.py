"""The handle of an all-reduce by the switch, for callers in Python and in C++."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from multiworld.errors import MultiWorldError
from multiworld.switchml.errors import SwitchJobTimeout

_Work: Any = getattr(dist, "Work", None) or dist._Work
#: The newest works that had no waiter yet. In older releases of torch, C++ callers hold the C++ part of a work
#: only: they would wait for the base class, and for ever, if the Python part were gone.
_unwaited: dict[SwitchWork, None] = {}
_KEPT = 256
_keeping = threading.Lock()


class SwitchWork(_Work):  # type: ignore[misc]
    """One all-reduce: pending until ``finish`` is called, by the thread that does it."""

    def __init__(self, tensor: torch.Tensor) -> None:
        super().__init__()
        self._tensor = tensor
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._error: Exception | None = None
        self._on_done: list[Callable[[], None]] = []
        self._future: torch.futures.Future[Any] | None = None
        with _keeping:
            _unwaited[self] = None
            if len(_unwaited) > _KEPT:
                del _unwaited[next(iter(_unwaited))]

    def finish(self, error: Exception | None = None) -> None:
        """Set the outcome; the first one counts."""
        with self._lock:
            if self._done.is_set():
                return
            self._error = error
            self._done.set()
            calls, self._on_done = self._on_done, []
        for call in calls:
            call()

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Block until it is done; ``timedelta(0)`` is without a limit of its own: the operation has one.

        Raises:
            SwitchJobFailed: the switch did not do it, or ``SwitchJobTimeout``: not in time.
        """
        seconds = timeout.total_seconds() if timeout else None
        if not self._done.wait(seconds):
            raise SwitchJobTimeout(
                what=f"an all-reduce was not done within {seconds} s", timeout=seconds or 0.0, operation="wait"
            )
        self._let_go()
        if isinstance(self._error, MultiWorldError):
            raise self._error.with_context()  # a copy: an exception that is raised twice gathers tracebacks
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self) -> None:
        """``wait``."""
        self.wait()

    def is_completed(self) -> bool:
        """Return whether it is done, well or not."""
        return self._done.is_set()

    def is_success(self) -> bool:
        """Return whether it is done and did not fail."""
        return self._done.is_set() and self._error is None

    def exception(self) -> Exception | None:
        """Why it failed; None if it did not."""
        return self._error

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
                self._future = first.then(self._outcome)
                self._on_done.append(lambda: first.set_result(self.result()))
            future, calls = self._future, self._on_done if self._done.is_set() else []
            if calls:
                self._on_done = []
        for call in calls:
            call()
        self._let_go()
        return future

    def _let_go(self) -> None:
        with _keeping:
            _unwaited.pop(self, None)

    def _outcome(self, _: Any) -> list[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return self.result()
