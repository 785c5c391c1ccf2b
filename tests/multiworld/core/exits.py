"""Programs that end their interpreter in the middle of a join: a worker forks one for each moment."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist

from multiworld import MultiWorld, RendezvousError
from multiworld.lab.context import Context

STATUS = 7


def frozen(mw: MultiWorld, store: Any, host: int, moment: float) -> None:
    """A join at a frozen store, which thaws when the interpreter ends."""
    _freeze(host)
    _in_background(lambda: mw.sync.join("w", 0, 2, store=store, join_timeout=30))
    time.sleep(moment)
    os.kill(host, signal.SIGCONT)


def timed_out(mw: MultiWorld, store: Any, host: int, moment: float) -> None:
    """The same after the join has timed out."""
    _freeze(host)
    try:
        mw.sync.join("w", 0, 2, store=store, join_timeout=0.2)
    except RendezvousError:
        pass
    else:
        raise AssertionError("the store was not frozen")
    os.kill(host, signal.SIGCONT)
    time.sleep(moment)


def cancelled(mw: MultiWorld, store: Any, host: int, moment: float) -> None:
    """A join that was cancelled while another member is missing."""

    async def main() -> None:
        task = asyncio.ensure_future(mw.join("w", 0, 2, store=store, join_timeout=30))
        await asyncio.sleep(moment)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(main())


def own(mw: MultiWorld, store: str, host: int, moment: float) -> None:
    """A frozen store that is given as torch's own object."""
    address, _, port = store.removeprefix("tcp://").rpartition(":")
    frozen(mw, dist.TCPStore(address, int(port), None, False, timedelta(seconds=30)), host, moment)


def _freeze(host: int) -> None:
    os.kill(host, signal.SIGSTOP)
    until = time.monotonic() + 5
    while Path(f"/proc/{host}/stat").read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < until, "it was not stopped"
        time.sleep(0.001)


def _in_background(work: Any) -> None:
    def run() -> None:
        with contextlib.suppress(Exception):  # the process ends meanwhile, or the MultiWorld closes
            work()

    threading.Thread(target=run, daemon=True).start()


def statuses(_: Context, scenario: str, store: str, host: int, folder: Path, moments: tuple[float, ...]) -> list[int]:
    """The exit status of a program for each moment.

    Args:
        scenario: one of the functions above.
        store: where the join meets its peers.
        host: the process that hosts it, to be frozen and thawed.
        folder: takes what the programs write to their standard error.
        moments: seconds after which the program ends.
    """
    found = []
    for moment in moments:
        child = os.fork()
        if not child:
            with (folder / f"{moment}.log").open("ab") as file:
                os.dup2(file.fileno(), 2)
            globals()[scenario](MultiWorld(), store, host, moment)
            sys.exit(STATUS)
        _, status = os.waitpid(child, 0)
        os.kill(host, signal.SIGCONT)
        found.append(os.waitstatus_to_exitcode(status))
    return found
