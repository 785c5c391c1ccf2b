"""`group-hold`: a communicator is aborted, and so freed, while an open NCCL group refers to it."""

from __future__ import annotations

from gpuless.catalogue.cleanup import TERMINATING
from gpuless.model import Patch, Probe

_LEFT = tuple(
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

_ABORTED = tuple(
    Probe(
        id=f"region-abort-{name}",
        patch=Patch.GROUP_HOLD,
        title=f"a user aborts a world while a coalescing region of it is ended; {title}",
        program="region_abort",
        args={"ends": ends},
        fires=("ncclGroupEnd",),
        evidence=TERMINATING,
        since=(2, 1),
    )
    for name, ends, title in (
        ("ending", True, "the communicator is freed after the end of its group"),
        ("stuck", False, "ncclGroupEnd never returns: the communicator is aborted all the same"),
    )
)

_SHUT_DOWN = Probe(
    id="region-shutdown",
    patch=Patch.BOUNDED_SHUTDOWN,
    title="a world is shut down while a coalescing region of it is ended: the communicator is freed after that",
    program="region_abort",
    args={"ends": True, "shuts_down": True},
    fires=("ncclGroupEnd",),
    evidence=TERMINATING,
    since=(2, 6),
)

PROBES: tuple[Probe, ...] = (*_LEFT, *_ABORTED, _SHUT_DOWN)
