"""The flight recorder: what is dumped is what was run, by whichever door it is asked for."""

from __future__ import annotations

from tests.gpuless.model import Patch, Probe

PROBES: tuple[Probe, ...] = (
    Probe(
        id="recorder-dump",
        patch=Patch.BASELINE,
        title="_dump_nccl_trace() shows the operations that were run",
        program="recorder",
        args={"door": "function"},
    ),
    Probe(
        id="recorder-handler",
        patch=Patch.BASELINE,
        title="the control plane's handler dump_nccl_trace_pickle dumps the same recorder",
        program="recorder",
        args={"door": "handler"},
        since=(2, 4),
    ),
)
