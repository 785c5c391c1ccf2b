"""`log-prefix`, `communicator-maps`, `event-cache`: what one thread changes or frees while another one reads it.

The patches act in every mode, since a reader of freed memory ends the process in every mode.
"""

from __future__ import annotations

from gpuless.model import Patch, Probe

_SKIP_CLEAN_UP = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}


def _log_prefix(operation: str, title: str) -> Probe:
    return Probe(
        id=f"log-prefix-{operation.replace('_', '-')}",
        patch=Patch.LOG_PREFIX,
        title=f"{title}: the log prefix that a thread of the process group reads stays as it is",
        program="log_prefix",
        args={"operation": operation},
        since=(2, 4),
    )


PROBES: tuple[Probe, ...] = (
    _log_prefix("eager", "a communicator is made right after the constructor"),
    _log_prefix("all_reduce", "the first operation makes a communicator"),
    _log_prefix("send", "a send makes a communicator for its peer"),
    Probe(
        id="communicator-maps",
        patch=Patch.COMMUNICATOR_MAPS,
        title="mode 3: a new communicator is not put into the map that abort() goes through",
        program="communicator_maps",
        environment=_SKIP_CLEAN_UP,
        fires=("ncclCommAbort",),
        since=(2, 2),
    ),
    Probe(
        id="event-cache",
        patch=Patch.EVENT_CACHE,
        title="the thread that enqueued an operation ends before the operation does",
        program="event_cache",
        fires=("ncclAllReduce",),
        evidence="terminate called",
        since=(2, 6),
    ),
)
