"""ProcessGroupNCCL2 ("nccl2"): in 2.14 by name, from 2.15 the default. The series does not touch it.

What it does is measured, good or bad, and has to stay so: a row that starts to pass, or to fail, is a mismatch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from gpuless.catalogue.baseline import LISTS, OPERATIONS, POINT_TO_POINT
from gpuless.catalogue.cleanup import (
    ABORT_FAILS,
    ABORT_HANGS,
    ASYNC_ERROR,
    FAIL,
    HANG,
    IN_EACH_MODE,
    QUERY_HANGS,
    Fault,
)
from gpuless.catalogue.cleanup import PROBES as CLEANUP
from gpuless.catalogue.groups import CALLS, failing
from gpuless.model import Patch, Probe

_SINCE = (2, 14)
_IN_MODES = ("pending-timeout", *IN_EACH_MODE)
_WORKS = "nccl2: every operation of a world, nothing injected"
_ENDING = r"Aborting process on rank \d+ due to"
_MODE = "TORCH_NCCL_ASYNC_ERROR_HANDLING"
#: The other modes, by the value of their variable; without it a process is in mode 3.
_MODES = {"": "unset", "0": "no-handling", "1": "tear-down", "3": "skip-clean-up"}
_SYNCHRONOUS = ("all_reduce", "all_gather", "broadcast", "all_reduce_coalesced", *POINT_TO_POINT, *LISTS[:-1])
#: Probes of the classic group that are run on nccl2 too.
_ASYNCHRONOUS = tuple(
    probe
    for probe in CLEANUP
    if probe.program in ("pending", "ending") and not probe.id.startswith(("user-abort-", "watchdog-hangs-"))
)
_ABORT, _REVOKE = "ncclCommAbort", "ncclCommRevoke"
_REVOKE_FAILS, _REVOKE_HANGS = [_REVOKE, FAIL, 2], [_REVOKE, HANG, 0]


def _synchronous(operation: str) -> Probe:
    title = f"nccl2: {operation}'s NCCL call fails with ncclRemoteError"
    probe = failing(f"nccl2-{operation}", Patch.UNCHANGED, title, CALLS, operation=operation, backend="nccl2")
    return replace(probe, since=_SINCE, patched=None)


def _on_nccl2(probe: Probe) -> Probe:
    return replace(
        probe,
        id=f"nccl2-{probe.id}",
        patch=Patch.UNCHANGED,
        title=f"nccl2: {probe.title}",
        args={**probe.args, "backend": "nccl2"},
        evidence=_ENDING,
        since=_SINCE,
        patched=None,
    )


def _in_mode(probe: Probe, mode: str) -> Probe:
    return replace(
        probe,
        id=probe.id.replace("nccl2-", f"nccl2-{_MODES[mode]}-", 1),
        title=f"{probe.title} (mode {mode or 'not set'})",
        args=_within(probe.args),
        environment={**probe.environment, _MODE: mode},
        # In modes that do not abort the abort's injection is never reached: that too has to stay so.
        fires=("ncclAllReduce",),
    )


def _within(args: Mapping[str, object]) -> dict[str, object]:
    """Return the arguments of a probe of a mode that may not abort at all: it does not wait for that long."""
    return {**args, "within": 8 if args.get("timeout") else 3} if "backend" in args else dict(args)


def _probe(name: str, title: str, program: str, fires: str, args: Mapping[str, object], timeout: float = 60) -> Probe:
    name, title, program = f"nccl2-{name}", f"nccl2: {title}", f"nccl2.{program}"
    probe = Probe(name, Patch.UNCHANGED, title, program, args, fires=(fires,), timeout=timeout)
    return replace(probe, evidence=_ENDING, since=_SINCE, patched=None)


def _ending(name: str, title: str, how: str, fires: str = "ncclAllReduce", **args: object) -> Probe:
    return _probe(f"user-{name}", f"an operation is held; {title}", "ending", fires, {"how": how, **args})


def _wait(name: str, title: str, fires: str = "ncclAllReduce", **args: object) -> Probe:
    return _probe(name, f"an operation is held; {title}", "wait", fires, args)


def _launch(name: str, title: str, site: str, operation: str, **args: object) -> Probe:
    return _probe(f"launch-{name}", title, "launch", site, {"site": site, "operation": operation, **args})


def _reconfigured(name: str, title: str, inject: list[Fault], fires: str = "ncclAllReduce", **args: object) -> Probe:
    title = f"enable_reconfigure; {title}"
    return _probe(f"reconfigure-{name}", title, "reconfigure", fires, {"inject": inject, **args})


def _heartbeat(probe: Probe) -> Probe:
    """A probe in which a thread of nccl2 hangs for many times the heartbeat's timeout."""
    return replace(
        probe,
        id=f"{probe.id}-long",
        title=f"{probe.title.partition(';')[0]}; heartbeat timeout 2 s, for 25 s",
        args={**probe.args, "window": 25},
        environment={"TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC": "2"},
        timeout=90,
    )


_QUERY, _CREATION = "cudaEventQuery", "the caller aborts while the communicator is being made"
_COMPLETED = "an operation is held; is_completed() while a CUDA call hangs does not stop the interpreter"
_USER_ABORT = _ending("abort", "the caller aborts, and wait() raises", "abort")
_REVOKED = "NCCL reports ncclRemoteError: revoked, then made again"
_RECONFIGURE_ERROR = _reconfigured("async-error", _REVOKED, [ASYNC_ERROR])
_SHARED_STREAM = "ncclCommAbort fails; a wait() that raises leaves the current stream, which all worlds share, usable"
_HUNG = "a CUDA call hangs the watchdog, then the caller aborts"
_ALLOCATION = "an all-reduce hangs in NCCL, and another thread allocates device memory"

PROBES: tuple[Probe, ...] = (
    Probe("nccl2-works", Patch.BASELINE, _WORKS, "works", {"operations": OPERATIONS, "backend": "nccl2"}, since=_SINCE),
    *map(_synchronous, _SYNCHRONOUS),
    *map(_on_nccl2, _ASYNCHRONOUS),
    *(_in_mode(_on_nccl2(p), mode) for mode in _MODES for p in _ASYNCHRONOUS if p.id in _IN_MODES),
    *(_heartbeat(_on_nccl2(p)) for p in _ASYNCHRONOUS if p.id in ("abort-hangs", "watchdog-hangs")),
    _USER_ABORT,
    *(_in_mode(_USER_ABORT, mode) for mode in _MODES),
    _ending("abort-fails", "the caller aborts, and ncclCommAbort fails", "abort", _ABORT, inject=[ABORT_FAILS]),
    _ending("abort-fails-stream", _SHARED_STREAM, "abort", _ABORT, inject=[ABORT_FAILS], judge="stream"),
    _ending("abort-hangs", "the caller aborts, and ncclCommAbort hangs", "abort", _ABORT, inject=[ABORT_HANGS]),
    _ending("abort-watchdog-hangs", _HUNG, "abort", _QUERY, inject=[QUERY_HANGS], until=_QUERY, judge="ended"),
    _ending("shutdown", "shutdown() answers long before the operation's timeout", "shutdown"),
    _ending("shutdown-timeout", "shutdown() answers after the operation's timeout of 3 s", "shutdown", timeout=3),
    _ending("delete", "the last reference is dropped", "delete", judge="ended"),
    _ending("delete-wait", "the last reference is dropped, and then wait() raises", "delete"),
    _wait("wait", "wait() does not return before it has ended", ask="wait"),
    _wait("wait-limit", "wait(1.5 s) raises", ask="wait with a limit"),
    _probe("is-completed", _COMPLETED, "wait", _QUERY, {"ask": "is_completed", "hang": _QUERY}, 20),
    _launch("hangs", "an all-reduce hangs in NCCL; abort() answers", "ncclAllReduce", "all_reduce"),
    _launch("hangs-send", "the end of a send's group hangs in NCCL; abort() answers", "ncclGroupEnd", "send"),
    _launch("hangs-allocation", _ALLOCATION, "ncclAllReduce", "all_reduce", allocate=True),
    _probe("creation-abort", _CREATION, "creation", "ncclCommInitRankConfig", {}),
    _RECONFIGURE_ERROR,
    *(_in_mode(_RECONFIGURE_ERROR, mode) for mode in _MODES),
    _reconfigured("timeout", "a peer is silent; the timeout of 4 s", [], timeout=4, window=7),
    _reconfigured("abort", "the caller aborts", [], how="abort"),
    _reconfigured("revoke-fails", "ncclCommRevoke fails", [ASYNC_ERROR, _REVOKE_FAILS], _REVOKE),
    _reconfigured("revoke-hangs", "ncclCommRevoke hangs", [ASYNC_ERROR, _REVOKE_HANGS], _REVOKE),
    _reconfigured("abort-hangs", "ncclCommAbort hangs while it is made again", [ASYNC_ERROR, ABORT_HANGS], _ABORT),
)
