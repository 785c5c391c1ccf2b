"""The probe's hand on the imitation it runs on: inject failures, read counters.

Runs in the probed interpreter: the standard library only. The sites and what each action means are in
`native/control.h`.
"""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Callable

FAIL, HANG, HOLD = 1, 2, 3
ANY = -1

REMOTE_ERROR = 6  # ncclRemoteError, what NCCL >= 2.13 reports for a dead peer
ILLEGAL_ADDRESS = 700  # cudaErrorIllegalAddress
LAUNCH_FAILURE = 719  # cudaErrorLaunchFailure, "unspecified launch failure"

#: The calls that carry data; which of them an operation uses differs between releases.
_CALLS = "AllReduce Broadcast Bcast Reduce AllGather ReduceScatter AlltoAll Gather Scatter Send Recv"
DATA_CALLS = tuple(f"nccl{call}" for call in _CALLS.split())

# Preloaded already; by its name the loader returns the same library.
library = ctypes.CDLL(os.environ["LD_PRELOAD"].replace(":", " ").split()[0])


def start(control: str) -> None:
    """Map this process's control block, a file that the runner reads after the process has ended."""
    library.gpuless_start(control.encode())


def inject(site: str, action: int, code: int = 0, comm: int = ANY, after: int = 0, times: int = 0) -> None:
    """Set what a call does.

    Args:
        site: the call's name, e.g. "ncclAllReduce".
        action: FAIL (return `code`), HANG (block the calling thread) or HOLD (take the operation, never finish it).
        code: the error code of FAIL.
        comm: only calls on this communicator, counted from 0 in order of creation.
        after: matching calls to let pass first.
        times: matching calls to hit after that; 0 means all.
    """
    if library.gpuless_inject(site.encode(), action, code, comm, after, times) != 0:
        raise ValueError(f"no injection site {site}")


def lift(*sites: str) -> None:
    for site in sites:
        inject(site, 0)


def calls(site: str) -> int:
    return int(library.gpuless_counter(site.encode(), 0))


def fired(site: str) -> int:
    return int(library.gpuless_counter(site.encode(), 1))


def hanging(site: str) -> int:
    return int(library.gpuless_counter(site.encode(), 2))


def launched() -> int:
    return int(library.gpuless_total(0))


def misused() -> int:
    """Return how often a handle was used after its end: in CUDA and NCCL, memory that was freed."""
    return int(library.gpuless_total(4))


def streams() -> int:
    return int(library.gpuless_total(5))


def depth() -> int:
    """Return how many NCCL groups this thread has open."""
    return int(library.gpuless_group_depth())


def comms() -> int:
    return int(library.gpuless_comm_count())


def is_aborted(comm: int) -> bool:
    return int(library.gpuless_comm_state(comm)) == 1


def has_ended(comm: int) -> bool:
    return int(library.gpuless_comm_state(comm)) > 0


def await_true(what: Callable[[], bool], seconds: float) -> float | None:
    """Wait until `what` holds; return the seconds it took, None when it did not within `seconds`."""
    start = time.monotonic()
    while time.monotonic() - start < seconds:
        if what():
            return round(time.monotonic() - start, 2)
        time.sleep(0.02)
    return None
