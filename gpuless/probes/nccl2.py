"""Programs about nccl2: its worlds while they are made, launch, are waited for, end, and are made again."""

from __future__ import annotations

import datetime
import time
from functools import partial

import fake
import torch
import torch.distributed as dist
from breakage import answer, break_world, launches, pair, raising
from world import DEVICE, TorchObject, World, delete, make_nccl2, tensor

_INIT = ("ncclCommInitRank", "ncclCommInitRankConfig")
_SEGMENT = 64 << 20  # bytes: more than the caching allocator has at hand
_KEPT: list[torch.Tensor] = []  # freed on purpose alone: the end of a function may have to wait for the allocator
_LIMIT = datetime.timedelta(seconds=1.5)
_TO_END = 8.0  # seconds to end a world


def creation() -> tuple[str, dict[str, object]]:
    """Abort a world while its first operation makes its communicator; let NCCL come back, and look at both."""
    healthy = World("nccl2")
    healthy.run("all_reduce")
    comm = fake.comms()
    for site in _INIT:
        fake.inject(site, fake.HANG, comm=comm)
    store = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
    group = make_nccl2(dist.PrefixStore("given up", store), datetime.timedelta(seconds=120), lazy=True)
    detail: dict[str, object] = {"first call": answer(lambda: group.allreduce([tensor(1)]), 2)}
    detail["abort"] = answer(group.abort)
    if not launches(healthy, detail):
        return "NOT_LAUNCHED", detail
    if detail["abort"] == "no answer":
        return "STALLED", detail
    fake.lift(*_INIT)
    detail["made after"] = fake.await_true(lambda: fake.comms() > comm, 5)
    detail["aborted after"] = fake.await_true(lambda: fake.is_aborted(comm), 5)
    return ("NOT_ABORTED" if detail["aborted after"] is None else "OK"), detail


def launch(site: str, operation: str, allocate: bool = False) -> tuple[str, dict[str, object]]:
    """Let a launch hang; use another world, and abort the hanging one.

    Args:
        site: the NCCL call that hangs.
        operation: the operation that makes it.
        allocate: let another thread allocate device memory meanwhile; nccl2 registers it with every group.
    """
    sick, healthy = pair("nccl2")
    _KEPT.append(tensor(1))
    fake.inject(site, fake.HANG, times=1)  # the next call in the process is the one below
    detail: dict[str, object] = {"launch": answer(lambda: sick.start(operation), 2)}
    if allocate:
        detail["allocation"] = answer(lambda: torch.empty(_SEGMENT, dtype=torch.uint8, device=DEVICE))
        detail["free"] = answer(_KEPT.clear)
    if not launches(healthy, detail):
        return "NOT_LAUNCHED", detail
    detail["abort"] = answer(sick.group.abort)
    return ("STALLED" if detail["abort"] == "no answer" else "OK"), detail


def wait(ask: str, hang: str = "") -> tuple[str, dict[str, object]]:
    """Hold an operation and ask its work.

    Args:
        ask: "wait" (without a limit), "wait with a limit", or "is_completed".
        hang: a call that hangs meanwhile, every time.
    """
    sick, _ = pair("nccl2")
    (comm,) = sick.comms
    fake.inject("ncclAllReduce", fake.HOLD, comm=comm)
    work = sick.start("all_reduce")
    if hang:
        fake.inject(hang, fake.HANG, comm=comm)
    asked = {"wait": work.wait, "wait with a limit": lambda: work.wait(_LIMIT), "is_completed": work.is_completed}
    detail: dict[str, object] = {ask: answer(asked[ask])}
    return raising(detail[ask]), detail


def ending(
    how: str,
    inject: list[tuple[str, int, int]] | None = None,
    until: str = "",
    timeout: float = 0,
    operation: str = "all_reduce",
    judge: str = "wait",
) -> tuple[str, dict[str, object]]:
    """Hold an operation, end its world, ask the operation's work for its outcome, and use another world.

    Args:
        how: "abort", "shutdown" or "delete" (drop the last reference).
        inject, until, timeout, operation: see `breakage.break_world`.
        judge: "wait": wait() of the operation has to raise; "stream": and the current stream has to be usable after
            it; "ended": the end alone decides, and the work is not touched afterwards.
    """
    breakage = break_world(inject or [], 12, "second", until, False, timeout, operation, "nccl2")
    detail, sick = breakage.detail, breakage.sick
    (comm,) = sick.comms
    start = time.monotonic()
    detail["ended"] = answer(partial(delete, sick) if how == "delete" else getattr(sick.group, how), _TO_END)
    detail["seconds"] = round(time.monotonic() - start, 1)
    detail["aborted"] = fake.is_aborted(comm)
    time.sleep(2)  # no event to wait for: what must not happen is an end of the process
    if not breakage.look_at_other_world():
        return "NOT_LAUNCHED", detail
    if judge != "ended":
        detail["wait"] = answer(breakage.work.wait)
        detail["stream"] = answer(lambda: tensor(1).cpu())
    if detail["ended"] == "no answer":
        return "STALLED", detail
    if judge == "stream" and detail["stream"] == "no answer":
        return "STALLED", detail
    return ("NO_EXCEPTION" if detail.get("wait") == "returned" else "OK"), detail


def reconfigure(
    inject: list[tuple[str, int, int]], how: str = "", timeout: float = 120, window: float = 3.0
) -> tuple[str, dict[str, object]]:
    """Break such a world while an operation is pending; use it, reconfigure it, and use another one.

    Args:
        inject: (site, action, code) for the world's communicator, set while the operation is pending.
        how: "abort" if the caller aborts it.
        timeout: the limit of its operations in seconds.
        window: seconds the process has to stay alive.
    """
    healthy = World("nccl2")
    healthy.run("all_reduce")
    store = dist.TCPStore("127.0.0.1", 0, 2, is_master=True, wait_for_workers=False)
    group = make_nccl2(dist.PrefixStore("reconfigured", store), datetime.timedelta(seconds=timeout), reconfigure=True)
    own = group.get_reconfigure_handle()
    _reconfigure(group, 1, [own, own.replace("nccl2:0:", "nccl2:1:")])
    comm = fake.comms() - 1
    fake.inject("ncclAllReduce", fake.HOLD, comm=comm)
    work = group.allreduce([tensor(1)])
    for site, action, code in inject:
        fake.inject(site, action, code, comm=comm)
    detail: dict[str, object] = {"abort": answer(group.abort) if how == "abort" else None}
    time.sleep(window)  # no event to wait for: what must not happen is an end of the process
    detail["revoked"], detail["aborted"] = fake.calls("ncclCommRevoke"), fake.calls("ncclCommAbort")
    detail["wait"] = answer(work.wait)
    detail["next call"] = answer(lambda: group.allreduce([tensor(1)]))
    detail["reconfigured"] = answer(lambda: _reconfigure(group, 2, [group.get_reconfigure_handle()]))
    detail["then"] = answer(lambda: group.allreduce([tensor(1)]).wait())
    launches(healthy, detail)
    return _judge(detail), detail


def _reconfigure(group: TorchObject, number: int, handles: list[str]) -> None:
    from torch._C._distributed_c10d import ReconfigureOptions

    options = ReconfigureOptions()
    options.uuid, options.handles = number, handles
    group.reconfigure(options).wait()


def _judge(detail: dict[str, object]) -> str:
    if not detail["other launched"]:
        return "NOT_LAUNCHED"
    if "no answer" in detail.values():
        return "STALLED"
    if detail["wait"] == "returned" or detail["next call"] == "returned":
        return "NO_EXCEPTION"
    if not detail["revoked"]:
        return "NOT_ABORTED"
    return "OK" if detail["reconfigured"] == detail["then"] == "returned" else "WRONG_EXCEPTION"
