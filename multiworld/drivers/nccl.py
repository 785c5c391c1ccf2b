"""NCCL: an unregistered process group of its own per group of a world. Not verified on a GPU."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from multiworld.drivers.calls import ProcessGroupCalls
from multiworld.drivers.values import LaneStore
from multiworld.matching.driver import Finished, Launched

logger = logging.getLogger(__name__)

# Deadlines are the session's.
_FOREVER = timedelta(days=30)
_POLL_SECONDS = 0.0005
#: an abort that takes longer is left to its thread
ABORT_SECONDS = 10.0


def unavailable() -> str | None:
    """Why NCCL cannot be used here; None if it can."""
    if not hasattr(dist, "ProcessGroupNCCL"):
        return "this torch is built without NCCL"
    if not torch.cuda.is_available():
        return "torch sees no CUDA device"
    return None


class NcclDriver(ProcessGroupCalls):
    """One ``ProcessGroupNCCL``, or its successor where a release has one.

    Args:
        store: where the communicators' ids are exchanged.
        rank: ours in the group.
        size: of the group.
        device: CUDA device in text.
    """

    name = "nccl"

    def __init__(self, store: LaneStore, rank: int, size: int, device: str) -> None:
        self._store = store
        self._rank, self._size = rank, size
        self._device = torch.device(device)
        self._aborting: threading.Thread | None = None
        self._watching: dict[int, tuple[Any, Finished]] = {}
        self._watcher: threading.Thread | None = None
        self._guard = threading.Condition()
        self._closed = False

    def open(self) -> None:
        """Make the communicator, at once and not at the first operation."""
        kind = getattr(dist, "ProcessGroupNCCL2", None) or dist.ProcessGroupNCCL
        options = kind.Options()
        options._timeout = _FOREVER
        torch.cuda.set_device(self._device)
        self._group = kind(self._store, self._rank, self._size, options)
        connect = getattr(self._group, "eager_connect_single_device", None)
        if connect is not None:
            connect(self._device)

    def watch(self, work: Any, finished: Finished, launched: Launched | None = None) -> None:  # noqa: ARG002
        """Report the end of ``work``, which NCCL shows only to whoever asks: one thread asks for all."""
        with self._guard:
            self._watching[id(work)] = work, finished
            if self._watcher is None:
                self._watcher = threading.Thread(target=self._watch_all, name="mw-nccl-watch", daemon=True)
                self._watcher.start()
            self._guard.notify_all()

    def abort(self) -> None:
        """Abort the communicators, from a thread of its own: NCCL may block in it."""
        self._store.stop()
        with self._guard:
            if self._aborting is None and self._group is not None:
                aborting = threading.Thread(target=self._abort, name="mw-nccl-abort", daemon=True)
                with contextlib.suppress(RuntimeError):  # the interpreter ends, and starts none: the process frees it
                    aborting.start()
                    self._aborting = aborting

    def close(self, deadline: float) -> None:
        """Free the communicators."""
        self.abort()
        if self._aborting is not None:
            self._aborting.join(min(deadline, ABORT_SECONDS))
        with self._guard:
            self._closed = True
            self._guard.notify_all()
        self._group = None

    def _abort(self) -> None:
        for name in ("abort", "_abort", "shutdown", "_shutdown"):
            end = getattr(self._group, name, None)
            if end is not None:
                with contextlib.suppress(RuntimeError):
                    end()
                return

    def _watch_all(self) -> None:
        while True:
            with self._guard:
                while not self._watching and not self._closed:
                    self._guard.wait()
                if self._closed:
                    return
                pending = list(self._watching.items())
            for key, (work, finished) in pending:
                self._look(key, work, finished)
            time.sleep(_POLL_SECONDS)

    def _look(self, key: int, work: Any, finished: Finished) -> None:
        error: BaseException | None = None
        try:
            if not work.is_completed():
                return
            work.wait()
        except Exception as failure:  # noqa: BLE001 - whatever NCCL raises is the outcome
            error = failure
        with self._guard:
            self._watching.pop(key, None)
        try:
            finished(error)
        except Exception:
            logger.exception("nccl: handling the end of an operation failed")  # the thread goes on watching the others
