"""All parts but the ratios: what a fault costs, how soon it is known, and what worlds cost while nothing happens."""

from __future__ import annotations

import asyncio
import os
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from multiworld.config import TcpStoreAddress
from multiworld.errors import PeerLost
from multiworld.lab.bench import acts
from multiworld.lab.bench.report import Figure, Spread, judged, paired_ratio, percentile
from multiworld.lab.context import Context
from multiworld.lab.injector import Fired, Injector
from multiworld.lab.workers import Worker, WorkerPool
from multiworld.worlds.multi_world import MultiWorld

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Setup:
    """The pool and its store, how much to measure, and what gets a line at each step."""

    pool: WorkerPool
    host: Worker
    store: TcpStoreAddress
    rounds: int
    quick: bool
    progress: Progress

    @contextmanager
    def workers(self, *names: str) -> Iterator[list[Worker]]:
        made = [self.pool.worker(name) for name in names]
        try:
            yield made
        finally:
            self.pool.dismiss(*made)

    def join(self, worlds: list[str], members: Sequence[Worker], how: Callable[..., Any] = acts.join_many) -> list[Any]:
        """Join ``worlds`` with ``members``, by rank; what ``how`` returns in each."""
        rest = len(members), self.store
        calls = [member.start(how, worlds, rank, *rest) for rank, member in enumerate(members)]
        return [call.result(180) for call in calls]


def everywhere(
    workers: Sequence[Worker], function: Callable[..., Any], *args: Any, timeout: float = 180.0
) -> list[Any]:
    return [call.result(timeout) for call in [worker.start(function, *args) for worker in workers]]


_OTHERS = 4
_WINDOW_SECONDS = 1.0
#: idle worlds; seconds and threads that a thousand joins may take
_WORLDS, _SECONDS, _THREADS = 200, 20.0, 50


def detection(setup: Setup) -> list[Figure]:
    """Measure how long a receive goes on after its peer is killed or frozen."""
    found = []
    for fault, limit, turns in (("kill", 0.05, 5 if setup.quick else 20), ("freeze", 1.0, 3 if setup.quick else 10)):
        name = f"peer {'killed' if fault == 'kill' else 'frozen'} while we wait in recv"
        setup.progress(name)
        seconds = [_noticed_after(setup, fault, turn) for turn in range(turns)]
        spread = Spread.of(seconds)
        text = f"p50 {spread.p50 * 1e3:,.1f} ms, most {spread.most * 1e3:,.1f} ms, {turns} times"
        found.append(judged(name, f"<= {limit * 1e3:,.0f} ms", text, spread.p50 <= limit, seconds=seconds))
    return found


def _noticed_after(setup: Setup, fault: str, turn: int) -> float:
    with setup.workers("survivor", "victim") as (survivor, victim):
        name = f"detect-{fault}-{turn}"
        setup.join([name], [survivor, victim])
        waiting = survivor.start(acts.receive, name, 1)
        survivor.wait_for("receiving")
        time.sleep(0.3 + 0.037 * turn)  # not in step with the heartbeat
        fired: Fired = getattr(Injector(), fault)(victim)
        noticed: float = waiting.result(30)
        return noticed - fired.at


def isolation(setup: Setup) -> list[Figure]:
    """Latency and rate of other worlds in windows with and without a break, in turns."""
    setup.progress("a break in one world against the others")
    names = [f"other-{number}" for number in range(_OTHERS)]
    windows: dict[bool, list[list[float]]] = {True: [], False: []}
    with setup.workers("leader", "partner") as pair:
        setup.join(names, pair)
        for turn in range(5 if setup.quick else 15):
            for strike in (False, True) if turn % 2 else (True, False):
                windows[strike].append(_window(setup, pair, names, turn, strike))
    struck, calm = windows[True], windows[False]
    p99 = paired_ratio([percentile(w, 0.99) for w in struck], [percentile(w, 0.99) for w in calm])
    rate = paired_ratio([len(w) for w in struck], [len(w) for w in calm])
    name = "break in one world: {} of the others"
    return [
        judged(name.format("p99"), "unchanged", f"{p99.text} x", p99.low <= 1.05, ratio=asdict(p99)),
        judged(name.format("rate"), "unchanged", f"{rate.text} x", rate.high >= 0.97, ratio=asdict(rate)),
    ]


def _window(setup: Setup, pair: list[Worker], names: list[str], turn: int, strike: bool) -> list[float]:
    """Round trips in the other worlds, with a member of one more world there, killed in the middle if ``strike``."""
    leader, partner = pair
    name = f"struck-{turn}-{strike}"
    with setup.workers("victim") as (victim,):
        setup.join([name], [leader, victim])
        waiting = leader.start(acts.receive, name, 1)
        leader.wait_for("receiving")
        echoing = partner.start(acts.echo, names, acts.PAYLOAD)
        calling = leader.start(acts.call, names, _WINDOW_SECONDS, acts.PAYLOAD)
        leader.wait_for("calling")
        time.sleep(_WINDOW_SECONDS / 3)
        if strike:
            victim.kill()
        trips: list[float] = calling.result(30)
        echoing.result(30)
        if not strike:
            victim.kill()
        waiting.result(30)
    return trips


def rejoin(setup: Setup) -> list[Figure]:
    """A world of two that is used, broken and joined again, a hundred times."""
    setup.progress("rejoin, a hundred times")
    with setup.workers("rejoin-0", "rejoin-1") as members:
        setup.join(["rejoin"], members)
        everywhere(members, acts.break_and_rejoin, "rejoin", 3)
        time.sleep(0.5)  # memory and descriptors are freed in the background
        before, keys = everywhere(members, acts.held), setup.host.run(acts.store_keys, setup.store)
        seconds = [value for each in everywhere(members, acts.break_and_rejoin, "rejoin", 100) for value in each]
        time.sleep(0.5)
        after, left = everywhere(members, acts.held), setup.host.run(acts.store_keys, setup.store)
    spread = Spread.of(seconds)
    pairs = list(zip(after, before, strict=True))
    grown = [*(sum(now[what] - then[what] for now, then in pairs) for what in (0, 1)), left - keys]
    text = f"p50 {spread.p50 * 1e3:,.1f} ms, p99 {spread.p99 * 1e3:,.1f} ms, most {spread.most * 1e3:,.1f} ms"
    leaks = f"{grown[0]} threads, {grown[1]} descriptors, {grown[2]} keys more"
    return [
        judged("rejoin under the same name", "<= 1 s", text, spread.p99 <= 1.0, **asdict(spread)),
        judged("rejoin 100 times: left behind", "nothing", leaks, all(n <= 0 for n in grown), timed=False, grown=grown),
    ]


def idle(setup: Setup) -> list[Figure]:
    """CPU of a pending receive and of many idle worlds; false alarms under full load."""
    seconds = 3.0 if setup.quick else 10.0
    with setup.workers("idle-0", "idle-1") as members:
        setup.join(["idle"], members)

        def share(function: object, *args: object) -> float:
            return float(members[0].run(function, *args, seconds, timeout=seconds + 30))  # type: ignore[arg-type]

        setup.progress("a pending recv")
        awaited, waiting = share(acts.cpu_of_receiving, "idle", 1), share(acts.cpu_of_waiting, "idle", 1)
        setup.progress(f"{_WORLDS} idle worlds")
        names = [f"idle-{number}" for number in range(_WORLDS)]
        each = max(setup.join(names, members))
        cpu = share(acts.cpu_of_idling)
        alarms = _false_alarms(setup, members[0], names, 5.0 if setup.quick else 20.0)
    joined = f"{_WORLDS} idle worlds in one process (joined in {each * 1e3:.1f} ms each)"
    costs = (("a pending recv costs (await)", awaited), ("a pending recv costs (sync)", waiting))
    found = [_share(name, share, 0.02) for name, share in costs]
    return [*found, _share(joined, cpu, 0.05), alarms]


def _share(name: str, share: float, limit: float) -> Figure:
    wanted = f"<= {limit * 100:.0f} % of a core"
    return judged(name, wanted, f"{share * 100:.2f} % of a core", share <= limit, share=share)


def _false_alarms(setup: Setup, worker: Worker, names: list[str], seconds: float) -> Figure:
    setup.progress("full CPU load")
    with setup.workers(*(f"burner-{number}" for number in range(2 * (os.cpu_count() or 1)))) as burners:
        everywhere(burners, acts.burn, seconds, timeout=seconds + 30)
    broken = worker.run(acts.still_there, names)
    text = f"{len(broken)} of {len(names)} worlds broke in {seconds:.0f} s with {len(burners)} busy processes"
    return judged("false alarms under full CPU load", "none", text, not broken, timed=False, broken=len(broken))


def joins(setup: Setup) -> list[Figure]:
    """A thousand joins at once, two members each, one store."""
    count = 300 if setup.quick else 1000
    setup.progress(f"{count} joins at once")
    names = [f"at-once-{number}" for number in range(count)]
    with setup.workers("joins-0", "joins-1") as members:
        each = setup.join(names, members, acts.join_at_once)
    seconds, threads = max(s for s, _ in each), max(t for _, t in each)
    limit = _SECONDS * count / 1000
    name, few, text = f"{count} joins at once", threads <= _THREADS, f"{threads} in a process"
    return [
        judged(name, f"<= {limit:.0f} s", f"{seconds:.1f} s", seconds <= limit, seconds=seconds),
        judged(f"{name}: threads", f"<= {_THREADS}", text, few, timed=False, threads=threads),
    ]


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
