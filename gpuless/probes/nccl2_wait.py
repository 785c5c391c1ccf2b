"""The answers of a pending operation's work in nccl2, before any failure."""

from __future__ import annotations

import datetime

import fake
from breakage import answer, pair, raising

_LIMIT = datetime.timedelta(seconds=1.5)


def run(ask: str, hang: str = "") -> tuple[str, dict[str, object]]:
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
