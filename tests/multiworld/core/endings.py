"""Programs that end at a given moment: a worker forks them, and each ends as a program does."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from multiworld import MultiWorld
from multiworld.lab.context import Context
from multiworld.operations import reduction

#: children at a time, on two processors; more of them make connecting so slow that older releases of Gloo abort
AT_ONCE = 6
#: how long a child goes on after its moment has begun, in seconds; two children take the first two
DELAYS = (0.003, 0.06, 0.0, 0.02, 0.15)
#: so that Gloo carries it
LENGTH = 300_000
_kept: list[Any] = []


def quietly(function: Callable[..., Any], *args: Any) -> None:
    """Run it in a daemon thread that ends in silence."""

    def run() -> None:
        with contextlib.suppress(Exception):
            function(*args)

    threading.Thread(target=run, daemon=True).start()


def pair(store: str) -> tuple[Any, Any]:
    """Both members of a world, in this process."""
    homes = [MultiWorld(), MultiWorld()]
    _kept.extend(homes)
    second: list[Any] = []
    other = threading.Thread(target=lambda: second.append(homes[1].sync.join("w", 1, 2, store=store)))
    other.start()
    first = homes[0].sync.join("w", 0, 2, store=store)
    other.join()
    return first, second[0]


def joining(store: str) -> None:
    mw = MultiWorld()
    _kept.append(mw)
    quietly(lambda: mw.sync.join("w", 0, 2, store=store))


def join_timed_out(store: str) -> None:
    mw = MultiWorld()
    _kept.append(mw)
    with contextlib.suppress(Exception):
        mw.sync.join("w", 0, 2, store=store, join_timeout=0.03)


def join_cancelled(store: str) -> None:
    async def main() -> None:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(mw.join("w", 0, 2, store=store), 0.03)

    mw = MultiWorld()
    _kept.append(mw)
    asyncio.run(main())


def own_store(_: str) -> None:
    host = dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=30), False)
    client = dist.TCPStore("127.0.0.1", host.port, None, False, timedelta(seconds=30), False)
    mw = MultiWorld()
    _kept.extend((host, client, mw))
    quietly(lambda: mw.sync.join("w", 0, 2, store=client))


def opening(store: str) -> None:
    for w in pair(store):
        quietly(w.sync.all_reduce, torch.ones(LENGTH))


def computing(store: str) -> None:
    """An operation whose caller is in code of torch for a while."""
    real = reduction._refusal

    def slow(name: str, dtype: torch.dtype) -> str | None:
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            torch.zeros(1).add_(1)
        return real(name, dtype)

    reduction._refusal = slow  # type: ignore[assignment]
    opening(store)


def breaking(store: str) -> None:
    first, second = pair(store)
    for w in (first, second):
        quietly(w.sync.all_reduce, torch.ones(10 * LENGTH))
    time.sleep(0.02)
    first.abort("now")


def rejoining(store: str) -> None:
    first, second = pair(store)
    first.abort("now")
    quietly(first.sync.rejoin)
    quietly(second.sync.rejoin)


def working(store: str) -> None:
    def work(w: Any) -> None:
        while True:
            w.sync.all_reduce(t)

    t = torch.ones(LENGTH)
    for w in pair(store):
        quietly(work, w)


def closing(store: str) -> None:
    pair(store)
    quietly(_kept[0].sync.close)


def dropped(store: str) -> None:
    pair(store)
    _kept.clear()
    gc.collect()


class _Lingers:
    """An interpreter that takes its time to end: what comes back from C++ meanwhile is ended by it."""

    def __del__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        sleep(4.0)


class _Stuck(dist.TCPStore):  # type: ignore[misc]
    """A caller's own store, whose host does not answer until the interpreter goes."""

    def compare_set(self, *_: Any) -> bytes:
        self.wait(["never"], timedelta(seconds=4.2))  # in C++ code
        return b""


def stuck_in_a_store(_: str) -> None:
    host = dist.TCPStore("127.0.0.1", 0, None, True, timedelta(seconds=30), False)
    client = _Stuck("127.0.0.1", host.port, None, False, timedelta(seconds=30), False)
    mw = MultiWorld()
    sys.lingers = _Lingers()  # type: ignore[attr-defined]
    _kept.extend((host, client, mw))
    quietly(lambda: mw.sync.join("w", 0, 2, store=client))
    time.sleep(0.1)


MOMENTS: dict[str, Callable[[str], None]] = {
    f.__name__: f
    for f in (
        joining,
        join_timed_out,
        join_cancelled,
        own_store,
        opening,
        computing,
        breaking,
        rejoining,
        working,
        closing,
        dropped,
        stuck_in_a_store,
    )
}


def _wait(running: dict[int, Path]) -> list[str]:
    pid, status = os.wait()
    said = running.pop(pid).read_text()
    return [f"status {os.waitstatus_to_exitcode(status)}: {said[-500:]}"] if status or said else []


def end_at(_: Context, moment: str, count: int, folder: Path) -> list[str]:
    """Fork the programs; a line for each that ended otherwise than with status 0 and in silence."""
    running: dict[int, Path] = {}
    wrong: list[str] = []
    for number in range(count):
        if len(running) == AT_ONCE:
            wrong += _wait(running)
        errors = folder / f"{moment}-{number}"
        pid = os.fork()
        if not pid:
            os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
            MOMENTS[moment](f"file://{folder}/store-{number}")
            time.sleep(DELAYS[number % len(DELAYS)])
            return []
        running[pid] = errors
    while running:
        wrong += _wait(running)
    return wrong
