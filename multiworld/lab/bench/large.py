"""One large world: how long it takes to join, and to go on without a member that was killed."""

from __future__ import annotations

import asyncio
import resource
import time

from multiworld.config import TcpStoreAddress
from multiworld.errors import PeerLost
from multiworld.lab.bench.report import Figure, Spread, judged
from multiworld.lab.bench.setup import Setup, everywhere
from multiworld.lab.context import Context
from multiworld.worlds.multi_world import MultiWorld

_SIZE = 64
#: processes that the members are spread over
_SPREADS = 4, _SIZE
_JOIN_SECONDS, _SHRINK_SECONDS = 3.0, 0.1


async def join_large(context: Context, name: str, ranks: range, size: int, store: TcpStoreAddress) -> float:
    """Join a world as several members; the seconds until all of them are in."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, allowed))
    homes = context.kept["homes"] = [MultiWorld() for _ in ranks]
    started = time.monotonic()
    joins = zip(homes, ranks, strict=True)
    await asyncio.gather(*(mw.join(name, rank, size, store=store, join_timeout=120) for mw, rank in joins))
    return time.monotonic() - started


async def go_on(context: Context, name: str) -> tuple[float, float]:
    """Wait until a member is lost, and shrink: when the first member here has noticed it, and when all had gone on."""
    noticed: list[float] = []

    async def one(mw: MultiWorld) -> None:
        world = mw[name]
        try:
            await world.barrier(timeout=120)
        except PeerLost:
            noticed.append(time.monotonic())
        await world.shrink()

    tasks = [asyncio.ensure_future(one(mw)) for mw in context.kept["homes"]]
    await asyncio.sleep(0)
    context.mark("waiting")
    await asyncio.gather(*tasks)
    return min(noticed), time.monotonic()


async def leave_large(context: Context) -> None:
    for mw in context.kept.pop("homes"):
        await mw.close()


def large(setup: Setup) -> list[Figure]:
    """Join a world of 64, kill a member, and go on with the others; with few processes, and with one for each."""
    return [figure for processes in _SPREADS for figure in _spread_over(setup, processes)]


def _spread_over(setup: Setup, processes: int) -> list[Figure]:
    turns = 2 if setup.quick else 5
    where = f"{_SIZE} members in {processes} processes"
    setup.progress(where)
    each = [_turn(setup, f"large-{processes}-{turn}", processes) for turn in range(turns)]
    joined, shrunk = (Spread.of(list(seconds)) for seconds in zip(*each, strict=True))
    return [
        _figure(f"{where}: join", joined, _JOIN_SECONDS),
        _figure(f"{where}: shrink, after the loss is noticed", shrunk, _SHRINK_SECONDS),
    ]


def _turn(setup: Setup, name: str, processes: int) -> tuple[float, float]:
    """The seconds of a join and of a shrink."""
    with setup.workers("victim", *(f"large-{number}" for number in range(processes))) as (victim, *workers):
        each = _SIZE // processes
        places = [(worker, range(at, at + each)) for worker, at in zip(workers, range(0, _SIZE, each), strict=True)]
        places.append((victim, range(_SIZE, _SIZE + 1)))
        joins = [worker.start(join_large, name, ranks, _SIZE + 1, setup.store) for worker, ranks in places]
        joined = max(call.result(180) for call in joins)
        running = [worker.start(go_on, name) for worker in workers]
        for worker in workers:
            worker.wait_for("waiting")
        victim.kill()
        gone: list[tuple[float, float]] = [call.result(180) for call in running]
        everywhere(workers, leave_large)
    return joined, max(back for _, back in gone) - min(noticed for noticed, _ in gone)


def _figure(name: str, spread: Spread, limit: float) -> Figure:
    text = f"p50 {spread.p50 * 1e3:,.0f} ms, most {spread.most * 1e3:,.0f} ms"
    return judged(name, f"<= {limit * 1e3:,.0f} ms", text, spread.p50 <= limit, seconds=spread.p50)
