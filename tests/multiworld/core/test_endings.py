"""A program may end at any moment: status 0, and nothing on its standard error."""

from __future__ import annotations

import gc
import os
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from procs import cluster, wait_until

from multiworld import MultiWorld, RendezvousError
from multiworld.lab.context import Context
from multiworld.process.thread_parking import park
from multiworld.process.threads import start_or_run
from tests.multiworld.core import endings

SECONDS = 10.0
#: how often each; more with MULTIWORLD_ENDINGS, to look for what is rare
COUNT = os.environ.get("MULTIWORLD_ENDINGS")


@pytest.mark.parametrize("moment", endings.MOMENTS)
def test_a_program_ends_in_silence(tmp_path: Path, moment: str, whole: bool) -> None:
    count = int(COUNT or (10 if whole else 2))
    with cluster() as c:
        assert c.start(endings.end_at, moment, count, tmp_path).result(240) == []


def _parks(context: Context) -> list[bool]:
    """Threads that wait in C++, in Python and not at all."""
    go = threading.Event()
    came_back = []

    def in_cpp() -> None:
        host = dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=30), False)
        context.send("waiting")
        try:
            host.wait(["never"], timedelta(seconds=1.0))
        except RuntimeError:
            came_back.append("c++")

    def busy() -> None:
        while not go.is_set():
            sum(range(1000))
        came_back.append("busy")

    waits = threading.Thread(target=in_cpp, daemon=True)
    works = threading.Thread(target=busy, daemon=True)
    waits.start()
    works.start()
    wait_until(lambda: bool(waits.native_id), SECONDS, "not started")
    threading.Event().wait(0.3)  # it is in the call by now; if not, it is not parked, and the test says so
    parked = park([waits, works])
    go.set()
    works.join(SECONDS)
    waits.join(1.5)
    return [waits in parked, works in parked, waits.is_alive(), "c++" in came_back, "busy" in came_back]


def test_what_waits_is_parked_for_good_and_what_runs_goes_on() -> None:
    with cluster() as c:
        proc = c.start(_parks)
        assert proc.recv() == "waiting"
        assert proc.result() == [True, False, True, False, True]


def test_what_no_thread_can_be_started_for_is_done_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """From Python 3.12 on the exit starts no thread."""

    def refuses(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    done: list[str] = []
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuses)
        start_or_run("mw-test", lambda: done.append(threading.current_thread().name))
    assert done == [threading.current_thread().name]


def _quietly(function: Any) -> None:
    try:
        function()
    except Exception:  # noqa: BLE001 - that it ends is what is looked at
        return


def _named_threads() -> set[str]:
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("mw-")}


def _counts() -> tuple[list[str], int]:
    threads = sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("mw-"))
    return threads, len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a number is wanted


def _lives_often(context: Context, store: str, rank: int, times: int) -> Any:
    with MultiWorld() as mw:
        counts = []
        for number in range(times):
            w = mw.sync.join(f"w{number}", rank, 2, store=store)
            _quietly(lambda w=w: w.sync.all_reduce(torch.ones(300_000)))  # the other one may be faster to abort
            if number % 2 and rank == 0:
                w.abort("on purpose")
            elif number % 2:
                _quietly(lambda w=w: w.sync.recv(torch.zeros(1), 0))
            w.sync.leave()
            w.member.session.freed.wait(SECONDS)
            if number in (times // 4, times - 1):
                counts.append(_settled(counts[-1][1] if counts else None))
        for _ in range(6):
            for fails in (_alone, _duplicate, _wrong_size, _cancelled):
                fails(mw, store, rank)
        counts.append(_settled(counts[-1][1]))
        return counts


def _settled(most: int | None) -> tuple[list[str], int]:
    """Counted once nothing is freed any more, and there are no more descriptors than ``most``."""
    stay = {"mw-hub", "mw-pulse"}
    wait_until(lambda: not _named_threads() - stay, SECONDS, "threads are left")
    gc.collect()  # an error holds the frames, and what is in them, of the call that raised it
    wait_until(lambda: most is None or _counts()[1] <= most, SECONDS, "descriptors are left")
    return _counts()


def _alone(mw: MultiWorld, store: str, rank: int) -> None:
    with pytest.raises(RendezvousError):
        mw.sync.join(f"alone-{rank}", 0, 2, store=store, join_timeout=0.1)


def _duplicate(mw: MultiWorld, store: str, rank: int) -> None:
    with MultiWorld() as other:
        other.sync.join(f"held-{rank}", 0, 1, store=store)
        with pytest.raises(RendezvousError):
            mw.sync.join(f"held-{rank}", 0, 1, store=store, join_timeout=1)


def _wrong_size(mw: MultiWorld, store: str, rank: int) -> None:
    with MultiWorld() as other:
        other.sync.join(f"size-{rank}", 0, 1, store=store)
        with pytest.raises(RendezvousError):
            mw.sync.join(f"size-{rank}", 1, 2, store=store, join_timeout=1)


def _cancelled(mw: MultiWorld, store: str, rank: int) -> None:
    import asyncio

    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(mw.join(f"cancelled-{rank}", 0, 2, store=store), 0.05)

    asyncio.run(main())


def test_forty_memberships_and_failed_joins_leave_no_thread_and_no_descriptor(store: str) -> None:
    with cluster() as c:
        for rank in (0, 1):
            c.start(_lives_often, store, rank, 40)
        for early, late, last in c.results(120):
            assert early[0] == late[0] == last[0] == ["mw-hub", "mw-pulse"]
