"""Devices that this process has lost: a sticky CUDA error is the end of all its work there.

After an illegal address (700) or a failed launch (719), every later CUDA call of the process on that device fails
alike. So all worlds on it end, whichever driver saw the error first.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import defaultdict
from collections.abc import Callable

import torch

from multiworld.backends import cuda
from multiworld.errors import DeviceFailed

logger = logging.getLogger(__name__)

Lost = Callable[[DeviceFailed], None]

_guard = threading.Lock()
_failures: dict[str, DeviceFailed] = {}
_listeners: defaultdict[str, dict[int, Lost]] = defaultdict(dict)


def failure_of(device: str) -> DeviceFailed | None:
    """The error that ended ``device``, such as ``"cuda:0"``, for this process; None if it works."""
    with _guard:
        return _failures.get(device)


def listen(device: str, lost: Lost) -> Callable[[], None]:
    """Call ``lost`` if ``device`` is lost, from any thread, maybe twice; at once if so. Returns what takes it back."""
    with _guard:
        _listeners[device][id(lost)] = lost
        failure = _failures.get(device)
    if failure is not None:
        lost(failure)

    def cancel() -> None:
        with _guard:
            _listeners[device].pop(id(lost), None)

    return cancel


def look(device: str, error: RuntimeError) -> None:
    """A call in the calling thread has raised ``error``: if that is the loss of ``device``, tell everybody who listens.

    The program's own kernels run in that thread's streams, so that it is often the first to hear of it.
    """
    with contextlib.suppress(RuntimeError):  # CUDA cannot even be asked
        with torch.cuda.device(device):
            code = cuda.sticky_error(torch.cuda.current_stream().cuda_stream)
        if code:
            report(device, code, str(error))


def report(device: str, code: int, what: str) -> DeviceFailed:
    """``device`` returned a sticky error: tell everybody who listens. The first report counts, but each one tells all:
    who reports goes on as one whose world has ended, while the first may still be telling others.

    Args:
        device: in text, with its index.
        code: the CUDA error.
        what: CUDA's text, of which the first line is told: torch adds advice for debuggers.
    """
    with _guard:
        listeners, failure = tuple(_listeners[device].values()), _failures.get(device)
        if failure is None:
            what = f"device {device} failed with CUDA error {code}: {what.partition(chr(10))[0]}"
            failure = _failures[device] = DeviceFailed(None, what, device=device, code=code)
            logger.error("%s", failure)
    for lost in listeners:
        try:
            lost(failure)
        except Exception:  # noqa: PERF203 - the others must hear of it
            logger.exception("a world on %s could not be told that the device is lost", device)
    return failure
