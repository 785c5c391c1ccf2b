"""Errors raised while an operation is being enqueued: `group-guard` and `group-leak`.

One NCCL call fails with ncclRemoteError inside a group, so the end of the group fails as well: what a dead
peer does. The caller must get DistBackendError, with no group left open.
"""

from __future__ import annotations

from dataclasses import replace

from gpuless.catalogue.baseline import SINCE_2_1
from gpuless.model import Patch, Probe

CALLS = (
    "ncclAllReduce",
    "ncclBroadcast",
    "ncclBcast",
    "ncclReduce",
    "ncclAllGather",
    "ncclReduceScatter",
    "ncclAlltoAll",
    "ncclGather",
    "ncclScatter",
    "ncclSend",
    "ncclRecv",
)
_INIT = ("ncclCommInitRank", "ncclCommInitRankConfig")
UNGROUPED = frozenset({(2, 4)})  # in these releases send and recv make no group
_SYSTEM_ERROR = 2  # ncclSystemError: an error that every release can convert

_COLLECTIVES = ("all_reduce", "all_gather", "broadcast", "reduce", "reduce_scatter")
_COALESCED = ("all_reduce_coalesced", "all_gather_into_tensor_coalesced", "reduce_scatter_tensor_coalesced")
_POINT_TO_POINT = ("send", "recv")
_LISTS = ("gather", "scatter", "all_to_all", "all_to_all_single", "all_to_all_single_uneven")


def failing(name: str, patch: Patch, title: str, fires: tuple[str, ...] = CALLS, **args: object) -> Probe:
    """Return a probe of an operation whose NCCL call fails."""
    return Probe(
        id=name,
        patch=patch,
        title=title,
        program="sync_failure",
        args=args,
        fires=fires,
        evidence="terminate called",
    )


def _call_fails(operation: str, patch: Patch) -> Probe:
    title = f"{operation}: its NCCL call fails with ncclRemoteError, and the end of its group too"
    probe = failing(operation, patch, title, operation=operation)
    return replace(probe, since=(2, 1)) if operation in SINCE_2_1 else probe


def _system_error(operation: str, patch: Patch) -> Probe:
    title = f"{operation}: the same with ncclSystemError"
    return failing(f"{operation}-system-error", patch, title, operation=operation, code=_SYSTEM_ERROR)


def _end_fails(operation: str, patch: Patch) -> Probe:
    title = f"{operation}: its NCCL calls succeed, only the end of its group fails"
    sites = ["ncclGroupEnd"]
    probe = failing(f"{operation}-group-end", patch, title, tuple(sites), operation=operation, sites=sites)
    return replace(probe, without=UNGROUPED) if operation in _POINT_TO_POINT else probe


def _init_fails(operation: str, patch: Patch) -> Probe:
    title = f"{operation}: its communicator cannot be made"
    return failing(f"{operation}-init", patch, title, _INIT, operation=operation, sites=list(_INIT), fresh=True)


_GUARD, _LEAK = Patch.GROUP_GUARD, Patch.GROUP_LEAK

PROBES: tuple[Probe, ...] = (
    *(_call_fails(op, _GUARD) for op in (*_COLLECTIVES, *_COALESCED)),
    *(_system_error(op, _GUARD) for op in ("all_reduce", "all_reduce_coalesced")),
    _end_fails("all_reduce_coalesced", _GUARD),
    *(_call_fails(op, _LEAK) for op in (*_POINT_TO_POINT, *_LISTS, "coalescing_manager")),
    *(_system_error(op, _LEAK) for op in ("send", "gather", "coalescing_manager")),
    *(_end_fails(op, _LEAK) for op in ("send", "recv", "gather", "scatter", "all_to_all", "coalescing_manager")),
    *(_init_fails(op, _LEAK) for op in ("all_reduce", "all_reduce_coalesced", "send", "gather", "coalescing_manager")),
)
