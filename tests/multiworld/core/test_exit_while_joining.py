"""The interpreter ends in the middle of a join: with the program's own exit status, and without a word of C++."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import procs
import pytest

from multiworld import MultiWorld
from multiworld.lab.context import Context
from multiworld.process import hooks
from tests.multiworld.core import exits

MOMENTS = (0.0, 0.005, 0.03, 0.15, 0.5)
WORDS = ("terminate called", "Fatal Python error", "Aborted", "Traceback")


def host(context: Context) -> None:
    """Host a store until the test ends."""
    with MultiWorld() as mw:
        context.send(str(mw.serve_store()))
        context.recv(120)


@pytest.mark.timeout(240)  # five interpreters come up and end, one after the other
@pytest.mark.parametrize("kind", ["tcp", "file"])
@pytest.mark.parametrize("scenario", ["frozen", "timed_out", "cancelled", "own"])
def test_the_exit_status_is_the_programs(scenario: str, kind: str, tmp_path: Path) -> None:
    if kind == "file" and scenario != "cancelled":
        pytest.skip("a file has no host that could freeze")
    with procs.cluster() as c:
        hosting = c.start(host)
        store = hosting.recv()
        given = store if kind == "tcp" else f"file://{tmp_path}/store"
        statuses = c.start(exits.statuses, scenario, given, hosting.pid, tmp_path, MOMENTS).result(180)
        hosting.send("end")
    logs = "".join(log.read_text() for log in tmp_path.glob("*.log"))
    assert statuses == [exits.STATUS] * len(MOMENTS), logs
    assert not [word for word in WORDS if word in logs], logs


def test_a_thread_that_is_being_started_is_not_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python lists it already, and raises when it is joined."""
    starter = "_start_joinable_thread" if hasattr(threading, "_start_joinable_thread") else "_start_new_thread"
    start: Callable[..., Any] = getattr(threading, starter)
    seen: list[list[threading.Thread]] = []

    def looked_at(*args: Any, **kwargs: Any) -> Any:
        seen.append(hooks._of_ours(set()))
        return start(*args, **kwargs)

    monkeypatch.setattr(threading, starter, looked_at)
    thread = threading.Thread(target=int, name="mw-test", daemon=True)
    thread.start()
    thread.join()
    assert len(seen) == 1
    assert thread not in seen[0]
