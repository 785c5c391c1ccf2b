"""The probes that must pass before any failure is injected."""

from __future__ import annotations

from dataclasses import replace

from gpuless.model import Patch, Probe

#: Operations that 2.0 does not have.
SINCE_2_1 = ("all_gather_into_tensor_coalesced", "reduce_scatter_tensor_coalesced")
OPERATIONS = [
    "all_reduce",
    "all_gather",
    "broadcast",
    "reduce",
    "reduce_scatter",
    "all_reduce_coalesced",
    "all_gather_into_tensor_coalesced",
    "reduce_scatter_tensor_coalesced",
    "coalescing_manager",
    "send",
    "recv",
    "gather",
    "scatter",
    "all_to_all",
    "all_to_all_single",
    "all_to_all_single_uneven",
    "barrier",
]

_WORKS = Probe(
    id="works",
    patch=Patch.BASELINE,
    title="copies to the device and back, every operation of a world, nothing injected",
    program="works",
    args={"operations": OPERATIONS},
    since=(2, 1),
)

PROBES: tuple[Probe, ...] = (
    _WORKS,
    replace(
        _WORKS,
        id="works-2.0",
        args={"operations": [name for name in OPERATIONS if name not in SINCE_2_1]},
        since=(2, 0),
        before=(2, 1),
    ),
)
