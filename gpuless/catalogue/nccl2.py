"""ProcessGroupNCCL2, the default backend of new releases: outside the series, so it must stay as it is."""

from __future__ import annotations

from dataclasses import replace

from gpuless.catalogue.groups import CALLS, failing
from gpuless.model import Patch, Probe

_OPERATIONS = (
    "all_reduce", "all_gather", "broadcast", "all_reduce_coalesced", "send", "recv", "gather", "scatter",
    "all_to_all", "all_to_all_single",
)  # fmt: skip


def _probe(operation: str) -> Probe:
    title = f"nccl2: {operation}'s NCCL call fails with ncclRemoteError"
    probe = failing(f"nccl2-{operation}", Patch.UNCHANGED, title, CALLS, operation=operation, backend="nccl2")
    return replace(probe, since=(2, 14), patched=None)


PROBES: tuple[Probe, ...] = tuple(map(_probe, _OPERATIONS))
