"""`bounded-shutdown`: the end of a process group whose peer is dead, as destroy_process_group() asks for it.

From 2.6 on shutdown() flushes with ncclCommFinalize, which waits for a dead peer without end.
"""

from __future__ import annotations

from gpuless.catalogue.cleanup import ABORT_HANGS, ASYNC_ERROR, HANG, MONITOR, TERMINATING
from gpuless.model import Patch, Probe

_FINALIZE_HANGS = ["ncclCommFinalize", HANG, 0]


def _nothing_pending(name: str, title: str, hangs: bool) -> Probe:
    return Probe(
        id=f"shutdown-{name}",
        patch=Patch.BOUNDED_SHUTDOWN,
        title=title,
        program="shutdown",
        args={"hangs": hangs},
        environment=MONITOR,
        fires=("ncclCommFinalize",) if hangs else (),
        evidence=TERMINATING,
        since=(2, 6),
    )


def _shutdown(name: str, title: str, *inject: list[object], timeout: float, judge: str = "ending") -> Probe:
    args = {"how": "shutdown", "inject": list(inject), "aborts": False, "timeout": timeout, "judge": judge}
    return Probe(
        id=f"shutdown-{name}",
        patch=Patch.BOUNDED_SHUTDOWN,
        title=f"shutdown with an operation pending: {title}",
        program="ending",
        args=args,
        environment=MONITOR,
        fires=("ncclAllReduce",),
        evidence=TERMINATING,
        since=(2, 6),
    )


def _aborted(name: str, title: str, *inject: list[object], **args: object) -> Probe:
    return Probe(
        id=f"shutdown-{name}",
        patch=Patch.BOUNDED_SHUTDOWN,
        title=f"a user aborts a world: {title}",
        program="shutdown_abort",
        args={"pending": False, "inject": list(inject), **args},
        fires=tuple(str(site) for site, _, _ in inject) or ("ncclAllReduce",),
        evidence=TERMINATING,
        since=(2, 6),
    )


PROBES: tuple[Probe, ...] = (
    _shutdown("async-error", "NCCL reports an error, ncclCommFinalize waits", _FINALIZE_HANGS, ASYNC_ERROR, timeout=60),
    _shutdown("silent", "the peer is silent, ncclCommFinalize waits; timeout 4 s", _FINALIZE_HANGS, timeout=4),
    _shutdown("wait", "the same; wait() of the operation raises", _FINALIZE_HANGS, timeout=4, judge="wait"),
    _nothing_pending("healthy", "shutdown finalizes and destroys what nothing is pending on", hangs=False),
    _nothing_pending(
        "lost-peer", "a peer dies after the last operation, ncclCommFinalize waits; timeout 4 s", hangs=True
    ),
    _aborted("flush-abort", "another thread is in shutdown(), which waits for an operation: both return", pending=True),
    _aborted("abort", "another thread is in shutdown(), which waits in ncclCommFinalize: both return", _FINALIZE_HANGS),
    _aborted("abort-hangs", "the same, and ncclCommAbort hangs: both return", _FINALIZE_HANGS, ABORT_HANGS),
    _aborted("after-abort-hangs", "ncclCommAbort hangs; shutdown() afterwards returns", ABORT_HANGS, first="abort"),
    Probe(
        id="split-hangs",
        patch=Patch.BOUNDED_SHUTDOWN,
        title="a world breaks while ncclCommSplit, of another one, waits for a peer: its next operation raises",
        program="split",
        fires=("ncclCommSplit",),
        evidence=TERMINATING,
        since=(2, 6),
    ),
)
