"""`cleanup-only`: in mode 2 nothing that befalls one world's watchdog may end or stall the process.

An all-reduce is pending on one world when that world breaks. Afterwards the process lives, the broken world
is aborted in time, its next operation raises, and the other world's operations are launched.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpuless.catalogue.baseline import RECORDING
from gpuless.catalogue.groups import INIT
from gpuless.model import Patch, Probe

FAIL, HANG = 1, 2  # the actions of native/control.h
ASYNC_ERROR = ["ncclCommGetAsyncError", FAIL, 6]
ABORT_FAILS, ABORT_HANGS = ["ncclCommAbort", FAIL, 2], ["ncclCommAbort", HANG, 0]
QUERY_HANGS = ["cudaEventQuery", HANG, 0]
# c10 marks LOG(FATAL) with F: the monitor ends the process with it, in words that differ between releases.
TERMINATING = r"(?m)terminate called|^\[F[^]]*ProcessGroupNCCL"
MONITOR = {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "3"}  # one that loses its patience while a probe runs
_MONITORED = (2, 2)  # the first release with a heartbeat monitor and with dumps
# Dumps with the time that releases up to 2.6 leave them by default.
_DUMP = RECORDING | {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "60000"}
_QUICK_DUMP = _DUMP | {"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "500"}
_NO_RETHROW = {"TORCH_NCCL_RETHROW_CUDA_ERRORS": "0"}

#: Probes that are run in other modes, and on nccl2, too.
IN_EACH_MODE = (
    "pending-async-error",
    "pending-wait",
    "event-query-illegal-address",
    "abort-fails",
    "abort-hangs",
    "watchdog-hangs",
)

Fault = list[object]
Args = Mapping[str, object]


def cleanup(
    name: str,
    title: str,
    program: str,
    args: Args,
    fires: tuple[str, ...],
    environment: Mapping[str, str] | None = None,
    since: tuple[int, int] = (2, 0),
    patch: Patch = Patch.CLEANUP_ONLY,
) -> Probe:
    """Return a probe of a process that a world's end may not end."""
    return Probe(name, patch, title, program, args, environment or {}, fires, since, evidence=TERMINATING)


def _pending(
    name: str,
    title: str,
    inject: list[Fault],
    args: Args | None = None,
    environment: Mapping[str, str] | None = None,
    since: tuple[int, int] = (2, 0),
) -> Probe:
    fires = (str(inject[-1][0]) if inject else "ncclAllReduce",)
    return cleanup(name, title, "pending", {"inject": inject, **(args or {})}, fires, environment, since)


def _ending(how: str, name: str, title: str, inject: list[Fault], args: Args) -> Probe:
    since = (2, 0) if how == "delete" else (2, 1)  # 2.0 cannot be asked to abort
    args = {"how": how, "inject": inject, **args}
    return cleanup(f"{how}-{name}", f"{how}: {title}", "ending", args, ("ncclCommGetAsyncError",), since=since)


def _user_abort(name: str, title: str, judge: str, *inject: Fault) -> Probe:
    """Return a probe of a user's abort() of a world that nothing has noticed as broken."""
    title = f"a user aborts a world while an operation is pending; {title}"
    args = {"how": "abort", "inject": list(inject), "aborts": False, "judge": judge}
    fires = ("ncclCommAbort" if inject else "ncclAllReduce",)
    return cleanup(f"user-abort-{name}", title, "ending", args, fires, since=(2, 1))


def _query_fails(name: str, title: str, code: int, environment: Mapping[str, str] | None = None) -> Probe:
    return _pending(f"event-query-{name}", title, [["cudaEventQuery", FAIL, code]], _IN_QUERY, environment)


def _dump(judge: str, title: str) -> Probe:
    fires = ("ncclCommGetAsyncError",)
    # 2.2 dumps after a timeout alone
    return cleanup(f"dump-{judge}", f"dumps on; {title}", "monitor.dumps", {"judge": judge}, fires, _QUICK_DUMP, (2, 4))


def _dumping(name: str, title: str, args: Args, environment: Mapping[str, str]) -> Probe:
    heartbeat = f", {_HEARTBEAT}" if environment.keys() & MONITOR.keys() else ""
    title = f"dumps on{heartbeat}; {title}"
    return _pending(f"pending-dump-{name}", title, [ASYNC_ERROR], args, environment, _MONITORED)


_WAIT: dict[str, object] = {"judge": "wait"}
_BARRIER = _WAIT | {"operation": "barrier"}
_SILENT: dict[str, object] = {"timeout": 4, "within": 15}
_IN_ABORT: dict[str, object] = {"until": "ncclCommAbort", "aborts": False}
_IN_QUERY: dict[str, object] = {"until": "cudaEventQuery"}
_FAILING, _HANGING = [ASYNC_ERROR, ABORT_FAILS], [ASYNC_ERROR, ABORT_HANGS]
_STREAM = "ncclCommAbort hangs; a wait() that raises leaves the current stream, which all worlds share, usable"
_HEARTBEAT = "heartbeat timeout 3 s"
_WATCHDOG = f"a CUDA call hangs the watchdog; {_HEARTBEAT}"
_ENQUEUE = "a CUDA call hangs the watchdog; an operation that is enqueued before anybody notices raises once it is"
_WATCHED = {"within": 15, "window": 9}
_UNNOTICED = {"aborts": False, "window": 0, "patience": 15}
_IMPATIENT: dict[str, object] = {"window": 9, "within": 5}
_USER_INIT = "a user aborts while a communicator is being made: the operation raises, the communicator is aborted"
_OTHER_BARRIER = "a peer of one world is silent; a barrier of another world does not wait for it"

PROBES: tuple[Probe, ...] = (
    _pending("pending-async-error", "NCCL reports ncclRemoteError; the watchdog aborts", [ASYNC_ERROR]),
    _pending("pending-async-error-first", "the same on the process's first group", [ASYNC_ERROR], {"broken": "first"}),
    _pending("pending-wait", "the same; wait() of the pending operation raises", [ASYNC_ERROR], _WAIT),
    _pending("pending-barrier-wait", "the same with a barrier; its wait() raises", [ASYNC_ERROR], _BARRIER),
    Probe("other-barrier", Patch.CLEANUP_ONLY, _OTHER_BARRIER, "sharing.barrier", fires=("ncclAllReduce",)),
    _pending("pending-new-peer", "the same; a send to a new peer raises as well", [ASYNC_ERROR], {"following": "send"}),
    _pending("pending-timeout", "a peer is silent; the process group's timeout of 4 s", [], _SILENT),
    _pending("pending-timeout-wait", "the same; wait() of the pending operation raises", [], _SILENT | _WAIT),
    _dumping("first", "the same on the first process group", _IMPATIENT | {"broken": "first"}, _DUMP | MONITOR),
    _dumping("second", "the same on another process group", _IMPATIENT, _DUMP | MONITOR),
    _dumping("patient", "a patient monitor: the abort does not wait for dumps", {"window": 1, "within": 5}, _DUMP),
    _dump("again", "two worlds break one after the other: both failures are dumped"),
    _dump("hangs", "a dump never ends: the process group whose thread dumps can be destroyed"),
    # 2.4 is the first release whose heartbeat monitor asks the store
    cleanup(
        "store-gone", "dumps on; the store of the first group goes away", "monitor.store_gone", {}, (), _DUMP, (2, 4)
    ),
    _query_fails("illegal-address", "cudaEventQuery fails on the watchdog thread with cudaErrorIllegalAddress", 700),
    _query_fails("launch-failure", "cudaEventQuery fails on the watchdog thread with cudaErrorLaunchFailure", 719),
    _query_fails("no-rethrow", "the same with TORCH_NCCL_RETHROW_CUDA_ERRORS=0", 700, _NO_RETHROW),
    _pending("abort-fails", "ncclCommAbort fails while the watchdog cleans up", _FAILING, _IN_ABORT),
    _pending("abort-hangs", f"the same, but it hangs; {_HEARTBEAT}", _HANGING, _IN_ABORT | {"window": 9}, MONITOR),
    _pending("abort-hangs-wait", "ncclCommAbort hangs; wait() of the operation raises", _HANGING, _IN_ABORT | _WAIT),
    _pending("abort-hangs-stream", _STREAM, _HANGING, _IN_ABORT | {"judge": "stream"}),
    _pending("abort-hangs-barrier-wait", "the same; a barrier's wait() raises", _HANGING, _IN_ABORT | _BARRIER),
    _pending("watchdog-hangs", _WATCHDOG, [QUERY_HANGS], _IN_QUERY | _WATCHED, MONITOR, _MONITORED),
    _pending("watchdog-hangs-enqueue", _ENQUEUE, [QUERY_HANGS], _IN_QUERY | _UNNOTICED, MONITOR, _MONITORED),
    _user_abort("wait", "its wait() raises afterwards", "wait"),
    _user_abort("waiting", "a barrier that is waited for raises", "waiting"),
    _user_abort("hangs-wait", "ncclCommAbort hangs; wait() raises and the other world goes on", "wait", ABORT_HANGS),
    _user_abort("hangs-waiting", "ncclCommAbort hangs; a barrier that is waited for raises", "waiting", ABORT_HANGS),
    cleanup("user-abort-init", _USER_INIT, "making.aborted", {}, INIT, since=(2, 1)),
    *(
        _ending(how, name, title, inject, args)
        for how in ("abort", "delete")
        for name, title, inject, args in (
            ("broken", "a world that the watchdog has aborted", [ASYNC_ERROR], {}),
            ("after-abort-fails", "a world whose ncclCommAbort has failed", _FAILING, _IN_ABORT),
            ("after-abort-hangs", "a world whose ncclCommAbort hangs", _HANGING, _IN_ABORT),
        )
    ),
)
