"""Errors raised while an operation is being enqueued: `group-guard`, `group-leak` and `remote-error`.

One NCCL call fails with ncclRemoteError inside a group, so the end of the group fails as well: what a dead
peer does. The caller must get DistBackendError, with no group left open. Releases before 2.4 cannot convert
ncclRemoteError (`remote-error`), so the message hides what happened.
"""

from __future__ import annotations

from dataclasses import replace

from gpuless.catalogue.baseline import COALESCED, COLLECTIVES, LISTS, POINT_TO_POINT, SINCE_2_1
from gpuless.model import Patch, Probe

_CALLS = "AllReduce Broadcast Bcast Reduce AllGather ReduceScatter AlltoAll Gather Scatter Send Recv"
CALLS = tuple(f"nccl{call}" for call in _CALLS.split())
GROUP_END = ("ncclGroupEnd",)
INIT = ("ncclCommInitRank", "ncclCommInitRankConfig")
_UNGROUPED = frozenset({(2, 4)})  # in these releases send and recv make no group
SYSTEM_ERROR = 2  # ncclSystemError: an error that every release can convert


def failing(name: str, patch: Patch, title: str, fires: tuple[str, ...] = CALLS, **args: object) -> Probe:
    return Probe(name, patch, title, "sync_failure", args, fires=fires, evidence="terminate called")


def _call_fails(operation: str, patch: Patch) -> Probe:
    title = f"{operation}: its NCCL call fails with ncclRemoteError, and the end of its group too"
    probe = failing(operation, patch, title, operation=operation)
    return replace(probe, since=(2, 1)) if operation in SINCE_2_1 else probe


def _system_error(operation: str, patch: Patch) -> Probe:
    title = f"{operation}: the same with ncclSystemError"
    return failing(f"{operation}-system-error", patch, title, operation=operation, code=SYSTEM_ERROR)


def _end_fails(operation: str, patch: Patch) -> Probe:
    title = f"{operation}: its NCCL calls succeed, only the end of its group fails"
    probe = failing(f"{operation}-group-end", patch, title, GROUP_END, operation=operation, sites=[*GROUP_END])
    return replace(probe, without=_UNGROUPED) if operation in POINT_TO_POINT else probe


def _init_fails(operation: str, patch: Patch) -> Probe:
    title = f"{operation}: its communicator cannot be made"
    return failing(f"{operation}-init", patch, title, INIT, operation=operation, sites=[*INIT], fresh=True)


def _unconvertible(name: str, title: str, fires: tuple[str, ...], **args: object) -> Probe:
    title += " with ncclRemoteError: the message says so"
    return failing(f"remote-error-{name}", Patch.REMOTE_ERROR, title, fires, judge="message", **args)


_GUARD, _LEAK = Patch.GROUP_GUARD, Patch.GROUP_LEAK
_SEND = {"operation": "send", "sites": [*GROUP_END]}

PROBES: tuple[Probe, ...] = (
    *(_unconvertible(op, f"{op} fails", CALLS, operation=op) for op in ("gather", "scatter", "all_to_all")),
    replace(_unconvertible("group-end", "the end of a send's group fails", GROUP_END, **_SEND), without=_UNGROUPED),
    *(_call_fails(op, _GUARD) for op in (*COLLECTIVES, *COALESCED)),
    *(_system_error(op, _GUARD) for op in ("all_reduce", "all_reduce_coalesced")),
    _end_fails("all_reduce_coalesced", _GUARD),
    *(_call_fails(op, _LEAK) for op in (*POINT_TO_POINT, *LISTS, "coalescing_manager")),
    *(_system_error(op, _LEAK) for op in ("send", "gather", "coalescing_manager")),
    *(_end_fails(op, _LEAK) for op in ("send", "recv", "gather", "scatter", "all_to_all", "coalescing_manager")),
    *(_init_fails(op, _LEAK) for op in ("all_reduce", "all_reduce_coalesced", "send", "gather", "coalescing_manager")),
)
