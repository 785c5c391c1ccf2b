"""Stores of torch's that have no other client than torch's: files, and objects of the caller's.

Their calls run in C++, and Python aborts the process when one comes back to an interpreter that is ending. So each call
passes a gate, which is closed when the process exits: those inside get a moment to come back, and none begins.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import torch.distributed as dist

from multiworld.process.thread_parking import immortal
from multiworld.store.client import Cancelled
from multiworld.transport.descriptors import none_free

#: how long closing the gate waits for calls that are inside; a store whose host is frozen takes longer
CLOSING_SECONDS: Final = 1.0


class Gate:
    """Counts the calls that are in C++, and lets none in once it is closed."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._closed = False

    @contextlib.contextmanager
    def passed(self) -> Iterator[None]:
        """Be inside for the block; raises ``Cancelled`` once the gate is closed."""
        with self._changed:
            if self._closed:
                raise Cancelled
            self._inside += 1
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                self._changed.notify_all()

    def close(self, seconds: float = CLOSING_SECONDS) -> bool:
        """Let no more calls in; whether all have left within ``seconds``."""
        with self._changed:
            self._closed = True
            return self._changed.wait_for(lambda: self._inside == 0, seconds)


class TorchStore:
    """A store object behind a gate, with all its methods."""

    def __init__(self, gate: Gate, make: Callable[[], Any]) -> None:
        self._gate = gate
        with gate.passed():
            self.object = make()

    def __getattr__(self, name: str) -> Callable[..., Any]:
        method = getattr(self.object, name)

        def call(*arguments: Any) -> Any:
            with self._gate.passed():
                return method(*arguments)

        return call


class FileStore(dist.FileStore):  # type: ignore[misc]  # torch is not followed by the type checker
    """``torch.distributed.FileStore``, kept for good if it is dropped while no descriptor is free.

    Its destructor opens the file once more, and ends the process if it cannot.
    """

    def __del__(self) -> None:
        if none_free():
            immortal(self)
