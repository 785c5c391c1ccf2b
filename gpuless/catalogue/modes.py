"""The other modes of error handling: stock and patched must do the same, whatever that is."""

from __future__ import annotations

from dataclasses import replace

from gpuless.catalogue.cleanup import IN_EACH_MODE
from gpuless.catalogue.cleanup import PROBES as CLEANUP
from gpuless.catalogue.groups import CALLS, GROUP_END, INIT, SYSTEM_ERROR, failing
from gpuless.catalogue.others import REGIONS, SHUTDOWNS, STREAMS
from gpuless.model import Patch, Probe

_SAME = ("pending-dump-second", *IN_EACH_MODE)
_MODES = {0: "no-handling", 1: "tear-down", 3: "skip-clean-up"}
_SINCE = {3: (2, 1)}  # the mode is not in 2.0
_REGION, _IN_REGION = "coalescing_manager", "an all-reduce of a coalescing region fails"
#: What stays in other modes: a user's abort, the end of a group, streams, regions.
_DEFECTS = ("user-abort-wait", "shutdown-silent", "region-end", "shared-stream")


def _unchanged(probe: Probe, mode: int, **args: object) -> Probe:
    return replace(
        probe,
        patch=Patch.UNCHANGED,
        title=f"mode {mode}: {probe.title}",
        args={**probe.args, **args},
        environment={**probe.environment, "TORCH_NCCL_ASYNC_ERROR_HANDLING": str(mode)},
        since=max(probe.since, _SINCE.get(mode, probe.since)),
        patched=None,
    )


def _in_mode(probe: Probe, mode: int, **args: object) -> Probe:
    # In modes that do not abort the abort's injection is never reached: that too has to stay so.
    return replace(_unchanged(probe, mode, **args), id=f"{_MODES[mode]}-{probe.id}", fires=("ncclAllReduce",))


def _enqueue(mode: int, operation: str, suffix: str = "", sites: tuple[str, ...] = CALLS) -> Probe:
    """An operation that fails while it is enqueued: group, process and exception are as on stock."""
    title = f"{operation}{suffix}: an NCCL call fails while it is enqueued"
    args = {"operation": operation, "code": SYSTEM_ERROR, "sites": list(sites), "fresh": sites == INIT}
    return _unchanged(failing(f"{_MODES[mode]}-{operation}{suffix}", Patch.UNCHANGED, title, sites, **args), mode)


def _by_another_name(operation: str) -> Probe:
    """Up to 2.1 the mode has one name; what the name of later releases says must not matter to the patches."""
    title = f"{operation}: mode 1, while the name of later releases says 2"
    probe = failing(f"other-name-{operation}", Patch.UNCHANGED, title, operation=operation, code=SYSTEM_ERROR)
    environment = {"NCCL_ASYNC_ERROR_HANDLING": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "2"}
    return replace(probe, environment=environment, before=(2, 2), patched=None)


PROBES: tuple[Probe, ...] = (
    *(_in_mode(p, mode, within=3) for mode in _MODES for p in CLEANUP if p.id in _SAME),
    *(_in_mode(p, mode) for mode in (1, 3) for p in (*CLEANUP, *SHUTDOWNS, *REGIONS, *STREAMS) if p.id in _DEFECTS),
    # A region that is never closed: in other modes it stays open, since the process is expected to end.
    *(
        _unchanged(failing(f"{name}-{_REGION}", Patch.UNCHANGED, _IN_REGION, operation=_REGION), mode)
        for mode, name in _MODES.items()
    ),
    *(_enqueue(3, op) for op in ("all_reduce_coalesced", "send", "gather", "all_to_all")),
    _enqueue(3, "gather", "-group-end", GROUP_END),
    _enqueue(3, "all_reduce", "-init", INIT),
    *(_enqueue(1, op) for op in ("all_reduce_coalesced", "gather")),
    _enqueue(0, "send"),
    *map(_by_another_name, ("all_reduce_coalesced", "gather")),
)
