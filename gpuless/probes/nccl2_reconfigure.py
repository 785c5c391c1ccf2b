"""A world of nccl2 in its reconfigure regime breaks, and is made again without the peer."""

from __future__ import annotations

import datetime
import time

import fake
import torch.distributed as dist
from breakage import answer, launches
from nccl2_group import make
from world import TorchObject, World, tensor


def run(
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
    group = make(dist.PrefixStore("reconfigured", store), datetime.timedelta(seconds=timeout), reconfigure=True)
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
