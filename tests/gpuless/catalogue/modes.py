"""The other modes of error handling: stock and patched must do the same, whatever that is."""

from __future__ import annotations

from dataclasses import replace

from tests.gpuless.catalogue.cleanup import PROBES as CLEANUP
from tests.gpuless.catalogue.groups import failing
from tests.gpuless.model import Patch, Probe

_MODES = {0: "no-handling", 1: "tear-down", 3: "skip-clean-up"}
_SAME = (
    "pending-async-error",
    "pending-wait",
    "pending-dump-second",
    "event-query-illegal-address",
    "abort-fails",
    "abort-hangs",
    "watchdog-hangs",
)


def _in_mode(probe: Probe, mode: int) -> Probe:
    return replace(
        probe,
        id=f"{_MODES[mode]}-{probe.id}",
        patch=Patch.UNCHANGED,
        title=f"mode {mode}: {probe.title}",
        args={**probe.args, "within": 3},
        environment={**probe.environment, "TORCH_NCCL_ASYNC_ERROR_HANDLING": str(mode)},
        # In modes that do not abort the abort's injection is never reached: that too has to stay so.
        fires=("ncclAllReduce",),
        patched=None,
    )


def _coalescing(mode: int) -> Probe:
    """A region that nobody closes: in other modes it stays open, since the process is not meant to go on."""
    title = f"mode {mode}: an all-reduce of a coalescing region fails"
    name = f"{_MODES[mode]}-coalescing_manager"
    probe = failing(name, Patch.UNCHANGED, title, operation="coalescing_manager")
    return replace(probe, environment={"TORCH_NCCL_ASYNC_ERROR_HANDLING": str(mode)}, patched=None)


PROBES: tuple[Probe, ...] = (
    *(_in_mode(p, mode) for mode in _MODES for p in CLEANUP if p.id in _SAME),
    *map(_coalescing, _MODES),
)
