"""Errors raised while an operation is being enqueued: `group-guard` and `group-leak`.

One NCCL call fails with ncclRemoteError inside a group, so the end of the group fails as well: what a dead
peer does. The caller must get DistBackendError, with no group left open.
"""

from __future__ import annotations

from collections.abc import Mapping

from tests.gpuless.catalogue.measured import DEAD, LEAK, OK, TYPE, measured
from tests.gpuless.model import Outcome, Patch, Probe

_CALLS = (
    "ncclAllReduce", "ncclBroadcast", "ncclBcast", "ncclReduce", "ncclAllGather", "ncclReduceScatter",
    "ncclAlltoAll", "ncclGather", "ncclScatter", "ncclSend", "ncclRecv",
)  # fmt: skip
_SYSTEM_ERROR = 2  # ncclSystemError: an error every release can convert

_COLLECTIVES = ("all_reduce", "all_gather", "broadcast", "reduce", "reduce_scatter")
_COALESCED = ("all_reduce_coalesced", "all_gather_into_tensor_coalesced", "reduce_scatter_tensor_coalesced")
_POINT_TO_POINT = ("send", "recv")
_LISTS = ("gather", "scatter", "all_to_all", "all_to_all_single", "all_to_all_single_uneven")


def _probe(operation: str, patch: Patch, stock: Mapping[str, Outcome], code: int = 0) -> Probe:
    failure = "ncclSystemError" if code else "ncclRemoteError"
    return Probe(
        id=f"{operation}{'-system-error' if code else ''}",
        patch=patch,
        title=f"{operation}: its NCCL call fails with {failure}, and the end of its group too",
        program="sync_failure",
        args={"operation": operation} | ({"code": code} if code else {}),
        fires=_CALLS,
        stock=stock,
        evidence="terminate called" if Outcome.TERMINATED in stock.values() else "",
    )


PROBES: tuple[Probe, ...] = (
    *(_probe(op, Patch.GROUP_GUARD, measured()) for op in (*_COLLECTIVES, *_COALESCED)),
    *(_probe(op, Patch.GROUP_GUARD, measured(), _SYSTEM_ERROR) for op in ("all_reduce", "all_reduce_coalesced")),
    *(_probe(op, Patch.GROUP_LEAK, measured()) for op in (*_POINT_TO_POINT, *_LISTS)),
    _probe("coalescing_manager", Patch.GROUP_LEAK, measured()),
    *(_probe(op, Patch.GROUP_LEAK, measured(), _SYSTEM_ERROR) for op in ("send", "gather")),
)
