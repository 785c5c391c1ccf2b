"""A user aborts a world while a thread is making a communicator of it."""

from __future__ import annotations

import threading

import fake
from breakage import answer, launches
from ending import abort_of
from world import World

_INIT = ("ncclCommInitRank", "ncclCommInitRankConfig")
_PATIENCE = 15.0


def run() -> tuple[str, dict[str, object]]:
    """Abort while ncclCommInitRank waits for the peer, let it return, and look at its communicator."""
    sick, healthy = World(), World()
    healthy.run("all_reduce")
    for site in _INIT:
        fake.inject(site, fake.HANG)
    answers: list[str] = []
    thread = threading.Thread(target=lambda: answers.append(answer(lambda: sick.run("all_reduce"), _PATIENCE)))
    thread.daemon = True
    thread.start()
    fake.await_true(lambda: any(map(fake.hanging, _INIT)), _PATIENCE)
    detail: dict[str, object] = {"abort": answer(abort_of(sick.group), _PATIENCE)}
    fake.lift(*_INIT)
    thread.join(_PATIENCE)
    detail["operation"] = answers[0] if answers else "no answer"
    detail["aborted after"] = fake.await_true(sick.is_aborted, 5)
    if not launches(healthy, detail) or detail["other world"] != "returned":
        return "NOT_LAUNCHED", detail
    if "no answer" in (detail["abort"], detail["operation"]):
        return "STALLED", detail
    if detail["operation"] == "returned":
        return "NO_EXCEPTION", detail
    return ("OK" if detail["aborted after"] is not None else "NOT_ABORTED"), detail
