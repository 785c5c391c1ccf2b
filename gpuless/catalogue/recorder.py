"""The flight recorder: it dumps what was run, through either of its interfaces."""

from __future__ import annotations

from gpuless.model import Patch, Probe

#: A recorder that keeps a hundred operations, under its names before and from 2.9.
RECORDING = {"TORCH_NCCL_TRACE_BUFFER_SIZE": "100", "TORCH_FR_BUFFER_SIZE": "100"}

PROBES: tuple[Probe, ...] = (
    Probe(
        id="recorder-dump",
        patch=Patch.BASELINE,
        title="_dump_nccl_trace() shows the operations that were run",
        program="recorder",
        args={"door": "function"},
        environment=RECORDING,
        since=(2, 2),
    ),
    Probe(
        id="recorder-handler",
        patch=Patch.BASELINE,
        title="the control plane's handler dump_nccl_trace_pickle dumps the same recorder",
        program="recorder",
        args={"door": "handler"},
        environment=RECORDING,
        since=(2, 4),
    ),
)
