"""`group-hold`: a communicator is aborted, and so freed, while an open NCCL group refers to it."""

from __future__ import annotations

from gpuless.catalogue.cleanup import TERMINATING
from gpuless.model import Patch, Probe

PROBES: tuple[Probe, ...] = tuple(
    Probe(
        id=f"region-{leave}",
        patch=Patch.GROUP_HOLD,
        title=f"a world breaks while a coalescing region is open; {title}",
        program="region",
        args={"leave": leave},
        fires=("ncclCommGetAsyncError",),
        evidence=TERMINATING,
        since=(2, 1),  # 2.0 hands the region's end the works of the region
    )
    for leave, title in (
        ("end", "the end of the region raises, and closes the group before the communicator is freed"),
        ("operation", "the region's next operation raises, and closes the group before the communicator is freed"),
    )
)
