"""`private-stream`: communicators that share a stream of torch's pool wait for each other's peers."""

from __future__ import annotations

from gpuless.model import Patch, Probe

_POOLED = 32  # streams of torch's pool, per device and priority

PROBES: tuple[Probe, ...] = (
    Probe(
        id="shared-stream",
        patch=Patch.PRIVATE_STREAM,
        title="a world whose peer is silent, and more worlds than torch's pool has streams",
        program="streams",
        args={"worlds": _POOLED + 2},
        fires=("ncclAllReduce",),
        timeout=120,
    ),
    Probe(
        id="stream-again",
        patch=Patch.PRIVATE_STREAM,
        title="worlds that are made and aborted one after the other use the same stream",
        program="streams",
        args={"worlds": 20, "again": True},
        since=(2, 2),  # before, only a destructor aborts for good
    ),
)
