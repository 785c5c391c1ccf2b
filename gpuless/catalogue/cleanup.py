"""`cleanup-only`: in mode 2 nothing that befalls one world's watchdog may end or stall the process.

An all-reduce is pending on one world when that world breaks. Afterwards the process lives, the broken world
is aborted in time, its next operation raises, and the other world's operations are launched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpuless.catalogue.recorder import RECORDING
from gpuless.model import Patch, Probe

FAIL, HANG = 1, 2  # the actions of native/control.h
ASYNC_ERROR = ["ncclCommGetAsyncError", FAIL, 6]
# c10 marks LOG(FATAL) with F: the monitor ends the process with it, in words that differ between releases.
TERMINATING = r"(?m)terminate called|^\[F[^]]*ProcessGroupNCCL"


def pending(
    name: str,
    title: str,
    inject: list[list[object]],
    environment: Mapping[str, str] | None = None,
    **args: object,
) -> Probe:
    """Return a probe of an operation that is pending when its world breaks."""
    return Probe(
        id=name,
        patch=Patch.CLEANUP_ONLY,
        title=title,
        program="pending",
        args={"inject": inject, **args},
        environment=environment or {},
        fires=(str(inject[-1][0]),) if inject else ("ncclAllReduce",),
        evidence=TERMINATING,
        timeout=60,
    )


def _ending(name: str, title: str, how: str, **args: object) -> Probe:
    return Probe(
        id=f"{how}-{name}",
        patch=Patch.CLEANUP_ONLY,
        title=f"{how}: {title}",
        program="ending",
        args={"how": how, **args},
        fires=("ncclCommGetAsyncError",),
        evidence=TERMINATING,
        since=(2, 0) if how == "delete" else (2, 1),  # 2.0 cannot be asked to abort
    )


def _user_abort(name: str, title: str, judge: str, *inject: list[object]) -> Probe:
    """Return a probe of a user's abort() of a world that nothing has noticed as broken."""
    return Probe(
        id=f"user-abort-{name}",
        patch=Patch.CLEANUP_ONLY,
        title=f"a user aborts a world while an operation is pending; {title}",
        program="ending",
        args={"how": "abort", "inject": list(inject), "aborts": False, "judge": judge},
        fires=("ncclCommAbort",) if inject else ("ncclAllReduce",),
        evidence=TERMINATING,
        since=(2, 1),
    )


_ABORT_FAILS = ["ncclCommAbort", FAIL, 2]
ABORT_HANGS = ["ncclCommAbort", HANG, 0]
_MONITORED = (2, 2)  # the first release with a heartbeat monitor and with dumps
MONITOR = {"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "3"}  # one that loses its patience while a probe runs
# Dumps with the time that releases up to 2.6 leave them by default.
_DUMP = RECORDING | {"TORCH_NCCL_DUMP_ON_TIMEOUT": "1", "TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "60000"}

_USER_ABORTS: tuple[Probe, ...] = (
    _user_abort("wait", "its wait() raises afterwards", "wait"),
    _user_abort("waiting", "a barrier that is waited for raises", "waiting"),
    _user_abort("hangs-wait", "ncclCommAbort hangs; wait() raises and the other world goes on", "wait", ABORT_HANGS),
    _user_abort("hangs-waiting", "ncclCommAbort hangs; a barrier that is waited for raises", "waiting", ABORT_HANGS),
)

PROBES: tuple[Probe, ...] = (
    pending("pending-async-error", "NCCL reports ncclRemoteError; the watchdog aborts", [ASYNC_ERROR]),
    pending(
        "pending-async-error-first",
        "the same on the first process group of the process",
        [ASYNC_ERROR],
        broken="first",
    ),
    pending(
        "pending-wait",
        "the same; wait() of the pending operation raises",
        [ASYNC_ERROR],
        judge="wait",
    ),
    pending(
        "pending-barrier-wait",
        "the same with a barrier; its wait() raises",
        [ASYNC_ERROR],
        operation="barrier",
        judge="wait",
    ),
    Probe(
        id="other-barrier",
        patch=Patch.CLEANUP_ONLY,
        title="a peer of one world is silent; a barrier of another world does not wait for it",
        program="barrier",
        fires=("ncclAllReduce",),
    ),
    pending(
        "pending-new-peer",
        "the same; a send, which needs a new communicator, raises as well",
        [ASYNC_ERROR],
        following="send",
    ),
    pending(
        "pending-timeout",
        "a peer is silent; the process group's timeout of 4 s",
        [],
        timeout=4,
        within=15,
    ),
    pending(
        "pending-timeout-wait",
        "the same; wait() of the pending operation raises",
        [],
        timeout=4,
        within=15,
        judge="wait",
    ),
    replace(
        pending(
            "pending-dump-first",
            "the same on the first process group, flight recorder dumps on, heartbeat timeout 3 s",
            [ASYNC_ERROR],
            _DUMP | MONITOR,
            broken="first",
            window=9,
            within=5,
        ),
        since=_MONITORED,
    ),
    replace(
        pending(
            "pending-dump-second",
            "the same on another process group, dumps on, heartbeat timeout 3 s",
            [ASYNC_ERROR],
            _DUMP | MONITOR,
            window=9,
            within=5,
        ),
        since=_MONITORED,
    ),
    replace(
        pending(
            "pending-dump-patient",
            "dumps on, a patient monitor: the abort does not wait for dumps",
            [ASYNC_ERROR],
            _DUMP,
            window=1,
            within=5,
        ),
        since=_MONITORED,
    ),
    *(
        Probe(
            id=f"dump-{judge}",
            patch=Patch.CLEANUP_ONLY,
            title=title,
            program="dumps",
            args={"judge": judge},
            environment=_DUMP | {"TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC": "500"},
            fires=("ncclCommGetAsyncError",),
            evidence=TERMINATING,
            since=(2, 4),  # 2.2 dumps after a timeout alone
        )
        for judge, title in (
            ("again", "dumps on; two worlds break one after the other: both failures are dumped"),
            ("hangs", "dumps on; a dump never ends: the process group whose thread dumps can be destroyed"),
        )
    ),
    Probe(
        id="store-gone",
        patch=Patch.CLEANUP_ONLY,
        title="dumps on; the store of the first process group goes away",
        program="store_gone",
        environment=_DUMP,
        evidence=TERMINATING,
        since=(2, 4),  # the first release whose heartbeat monitor asks the store
    ),
    pending(
        "event-query-illegal-address",
        "cudaEventQuery fails on the watchdog thread with cudaErrorIllegalAddress",
        [["cudaEventQuery", FAIL, 700]],
        until="cudaEventQuery",
    ),
    pending(
        "event-query-launch-failure",
        "cudaEventQuery fails on the watchdog thread with cudaErrorLaunchFailure",
        [["cudaEventQuery", FAIL, 719]],
        until="cudaEventQuery",
    ),
    pending(
        "event-query-no-rethrow",
        "the same with TORCH_NCCL_RETHROW_CUDA_ERRORS=0",
        [["cudaEventQuery", FAIL, 700]],
        {"TORCH_NCCL_RETHROW_CUDA_ERRORS": "0"},
        until="cudaEventQuery",
    ),
    pending(
        "abort-fails",
        "ncclCommAbort fails while the watchdog cleans up",
        [ASYNC_ERROR, _ABORT_FAILS],
        until="ncclCommAbort",
        aborts=False,
    ),
    pending(
        "abort-hangs",
        "ncclCommAbort hangs while the watchdog cleans up; heartbeat timeout 3 s",
        [ASYNC_ERROR, ABORT_HANGS],
        MONITOR,
        until="ncclCommAbort",
        aborts=False,
        window=9,
    ),
    pending(
        "abort-hangs-wait",
        "ncclCommAbort hangs; wait() of the pending operation raises",
        [ASYNC_ERROR, ABORT_HANGS],
        until="ncclCommAbort",
        aborts=False,
        judge="wait",
    ),
    pending(
        "abort-hangs-stream",
        "ncclCommAbort hangs; a wait() that raises leaves the current stream, which all worlds share, usable",
        [ASYNC_ERROR, ABORT_HANGS],
        until="ncclCommAbort",
        aborts=False,
        judge="stream",
    ),
    pending(
        "abort-hangs-barrier-wait",
        "ncclCommAbort hangs; wait() of a pending barrier raises",
        [ASYNC_ERROR, ABORT_HANGS],
        until="ncclCommAbort",
        aborts=False,
        operation="barrier",
        judge="wait",
    ),
    replace(
        pending(
            "watchdog-hangs",
            "a CUDA call hangs the watchdog; heartbeat timeout 3 s",
            [["cudaEventQuery", HANG, 0]],
            MONITOR,
            until="cudaEventQuery",
            within=15,
            window=9,
        ),
        since=_MONITORED,
    ),
    replace(
        pending(
            "watchdog-hangs-enqueue",
            "a CUDA call hangs the watchdog; an operation that is enqueued before anybody notices raises once it is",
            [["cudaEventQuery", HANG, 0]],
            MONITOR,
            until="cudaEventQuery",
            aborts=False,
            window=0,
            patience=15,
        ),
        since=_MONITORED,
    ),
    *_USER_ABORTS,
    Probe(
        id="user-abort-init",
        patch=Patch.CLEANUP_ONLY,
        title="a user aborts while a communicator is being made: the operation raises, the communicator is aborted",
        program="abort_during_init",
        fires=("ncclCommInitRank", "ncclCommInitRankConfig"),
        evidence=TERMINATING,
        since=(2, 1),
    ),
    *(
        ending
        for how in ("abort", "delete")
        for ending in (
            _ending("broken", "a world that the watchdog has aborted", how, inject=[ASYNC_ERROR]),
            _ending(
                "after-abort-fails",
                "a world whose ncclCommAbort has failed",
                how,
                inject=[ASYNC_ERROR, _ABORT_FAILS],
                until="ncclCommAbort",
                aborts=False,
            ),
            _ending(
                "after-abort-hangs",
                "a world whose ncclCommAbort hangs",
                how,
                inject=[ASYNC_ERROR, ABORT_HANGS],
                until="ncclCommAbort",
                aborts=False,
            ),
        )
    ),
)
