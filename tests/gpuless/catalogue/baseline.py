"""What must work before any failure is injected."""

from __future__ import annotations

from tests.gpuless.model import Patch, Probe

_OPERATIONS = [
    "all_reduce", "all_gather", "broadcast", "reduce", "reduce_scatter",
    "all_reduce_coalesced", "all_gather_into_tensor_coalesced", "reduce_scatter_tensor_coalesced",
    "coalescing_manager", "send", "recv", "gather", "scatter",
    "all_to_all", "all_to_all_single", "all_to_all_single_uneven", "barrier",
]  # fmt: skip

PROBES: tuple[Probe, ...] = (
    Probe(
        id="works",
        patch=Patch.BASELINE,
        title="copies to the device and back, every operation of a world, nothing injected",
        program="works",
        args={"operations": _OPERATIONS},
    ),
)
