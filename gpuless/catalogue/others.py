"""`group-hold`, `bounded-shutdown`, `private-stream`, and what one thread frees while another one reads it.

`group-hold`: a communicator is aborted, and so freed, while an open NCCL group refers to it.
`bounded-shutdown`: the end of a process group whose peer is dead, as destroy_process_group() asks for it. From 2.6 on
shutdown() flushes with ncclCommFinalize, which waits for a dead peer without end.
`private-stream`: communicators that share a stream of torch's pool wait for each other's peers.
`log-prefix`, `communicator-maps`, `event-cache` act in every mode, since a reader of freed memory ends the process in
every mode.
"""

from __future__ import annotations

from gpuless.catalogue.cleanup import ABORT_HANGS, ASYNC_ERROR, HANG, MONITOR, Fault, cleanup
from gpuless.model import Patch, Probe

_FINALIZE_HANGS = ["ncclCommFinalize", HANG, 0]
_POOLED = 32  # streams of torch's pool, per device and priority
_SKIP_CLEAN_UP = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "3"}
_ENDING = "a world while a coalescing region of it is ended"
_SPLIT = "a world breaks while ncclCommSplit, of another one, waits for a peer: its next operation raises"
_SHARED = "a world whose peer is silent, and more worlds than torch's pool has streams"
_AGAIN = "worlds that are made and aborted one after the other use the same stream"
_MAPS, _MAP = Patch.COMMUNICATOR_MAPS, "mode 3: a new communicator is not put into the map that abort() goes through"
_HOLD, _SHUTDOWN, _STREAM = Patch.GROUP_HOLD, Patch.BOUNDED_SHUTDOWN, Patch.PRIVATE_STREAM


def _left(leave: str, title: str) -> Probe:
    title = f"a world breaks in an open region; {title} raises, and closes the group before the communicator is freed"
    args, fires = {"leave": leave}, ("ncclCommGetAsyncError",)
    # 2.0 hands the region's end the works of the region
    return cleanup(f"region-{leave}", title, "region", args, fires, since=(2, 1), patch=_HOLD)


def _ended(name: str, title: str, since: tuple[int, int], patch: Patch, **args: bool) -> Probe:
    return cleanup(f"region-{name}", title, "region.ended", args, ("ncclGroupEnd",), since=since, patch=patch)


def _nothing_pending(name: str, title: str, hangs: bool) -> Probe:
    fires = ("ncclCommFinalize",) if hangs else ()
    return cleanup(f"shutdown-{name}", title, "shutdown", {"hangs": hangs}, fires, MONITOR, (2, 6), _SHUTDOWN)


def _shut_down(name: str, title: str, *inject: Fault, timeout: float, judge: str = "ending") -> Probe:
    args = {"how": "shutdown", "inject": list(inject), "aborts": False, "timeout": timeout, "judge": judge}
    title = f"shutdown with an operation pending: {title}"
    return cleanup(f"shutdown-{name}", title, "ending", args, ("ncclAllReduce",), MONITOR, (2, 6), _SHUTDOWN)


def _shutdown_aborted(name: str, title: str, *inject: Fault, **args: object) -> Probe:
    fires = tuple(str(site) for site, _, _ in inject) or ("ncclAllReduce",)
    args = {"pending": False, "inject": list(inject), **args}
    title = f"a user aborts a world: {title}"
    return cleanup(f"shutdown-{name}", title, "shutdown.aborted", args, fires, None, (2, 6), _SHUTDOWN)


def _log_prefix(operation: str, title: str) -> Probe:
    title += ": the log prefix that a thread of the process group reads stays as it is"
    name = f"log-prefix-{operation.replace('_', '-')}"
    return Probe(name, Patch.LOG_PREFIX, title, "freed.log_prefix", {"operation": operation}, since=(2, 4))


REGIONS: tuple[Probe, ...] = (
    _left("end", "the end of the region"),
    _left("operation", "the region's next operation"),
    _ended("abort-ending", f"a user aborts {_ENDING}: freed after the end of its group", (2, 1), _HOLD, ends=True),
    _ended("abort-stuck", f"a user aborts {_ENDING}, which never returns: aborted anyway", (2, 1), _HOLD, ends=False),
    _ended("shutdown", f"{_ENDING} is shut down: freed after that", (2, 6), _SHUTDOWN, ends=True, shuts_down=True),
)
SHUTDOWNS: tuple[Probe, ...] = (
    _shut_down("async-error", "NCCL reports an error, and the flush waits", _FINALIZE_HANGS, ASYNC_ERROR, timeout=60),
    _shut_down("silent", "the peer is silent, ncclCommFinalize waits; timeout 4 s", _FINALIZE_HANGS, timeout=4),
    _shut_down("wait", "the same; wait() of the operation raises", _FINALIZE_HANGS, timeout=4, judge="wait"),
    _nothing_pending("healthy", "shutdown finalizes and destroys what nothing is pending on", hangs=False),
    _nothing_pending("lost-peer", "a peer dies after the last operation, the flush waits; timeout 4 s", hangs=True),
    _shutdown_aborted("flush-abort", "a thread is in shutdown() for an operation: both return", pending=True),
    _shutdown_aborted("abort", "a thread is in shutdown() for ncclCommFinalize: both return", _FINALIZE_HANGS),
    _shutdown_aborted("abort-hangs", "the same, and ncclCommAbort hangs: both return", _FINALIZE_HANGS, ABORT_HANGS),
    _shutdown_aborted("after-abort-hangs", "ncclCommAbort hangs; shutdown() returns then", ABORT_HANGS, first="abort"),
    cleanup("split-hangs", _SPLIT, "making.split", {}, ("ncclCommSplit",), None, (2, 6), _SHUTDOWN),
)
STREAMS: tuple[Probe, ...] = (
    Probe(
        "shared-stream",
        _STREAM,
        _SHARED,
        "sharing.streams",
        {"worlds": _POOLED + 2},
        fires=("ncclAllReduce",),
        timeout=120,
    ),
    # Before 2.2, only a destructor aborts for good.
    Probe("stream-again", _STREAM, _AGAIN, "sharing.streams", {"worlds": 20, "again": True}, since=(2, 2)),
)
PROBES: tuple[Probe, ...] = (
    *REGIONS,
    *SHUTDOWNS,
    *STREAMS,
    _log_prefix("eager", "a communicator is made right after the constructor"),
    _log_prefix("all_reduce", "the first operation makes a communicator"),
    _log_prefix("send", "a send makes a communicator for its peer"),
    Probe("communicator-maps", _MAPS, _MAP, "making.listed", {}, _SKIP_CLEAN_UP, ("ncclCommAbort",), (2, 2)),
    Probe(
        "event-cache",
        Patch.EVENT_CACHE,
        "the thread that enqueued an operation ends before the operation does",
        "freed.event_cache",
        fires=("ncclAllReduce",),
        evidence="terminate called",
        since=(2, 6),
    ),
)
