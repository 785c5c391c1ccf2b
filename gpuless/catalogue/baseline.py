"""The probes that must pass before any failure is injected, and those of the flight recorder."""

from __future__ import annotations

from gpuless.model import Patch, Probe

#: Operations that 2.0 does not have.
SINCE_2_1 = ("all_gather_into_tensor_coalesced", "reduce_scatter_tensor_coalesced")
COLLECTIVES = ("all_reduce", "all_gather", "broadcast", "reduce", "reduce_scatter")
COALESCED = ("all_reduce_coalesced", *SINCE_2_1)
POINT_TO_POINT = ("send", "recv")
LISTS = ("gather", "scatter", "all_to_all", "all_to_all_single", "all_to_all_single_uneven")
OPERATIONS = [*COLLECTIVES, *COALESCED, "coalescing_manager", *POINT_TO_POINT, *LISTS, "barrier"]
#: A recorder that keeps a hundred operations, under its names before and from 2.9.
RECORDING = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "100", "TORCH_FR_BUFFER_SIZE": "100"}
_WORKS = "copies to the device and back, every operation of a world, nothing injected"
_OLD = [name for name in OPERATIONS if name not in SINCE_2_1]
_DUMP = "_dump_nccl_trace() shows the operations that were run"
_HANDLER = "the control plane's handler dump_nccl_trace_pickle dumps the same recorder"

PROBES: tuple[Probe, ...] = (
    Probe("works", Patch.BASELINE, _WORKS, "works", {"operations": OPERATIONS}, since=(2, 1)),
    Probe("works-2.0", Patch.BASELINE, _WORKS, "works", {"operations": _OLD}, before=(2, 1)),
    Probe("recorder-dump", Patch.BASELINE, _DUMP, "recorder", {"door": "function"}, RECORDING, since=(2, 2)),
    Probe("recorder-handler", Patch.BASELINE, _HANDLER, "recorder", {"door": "handler"}, RECORDING, since=(2, 4)),
)
