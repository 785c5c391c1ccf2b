"""Parts ``detection``, ``isolation`` and ``rejoin``: what a fault costs, and how soon it is known."""

from __future__ import annotations

import time

from multiworld.config import TcpStoreAddress
from multiworld.lab.bench import acts, workloads
from multiworld.lab.bench.ratios import Progress
from multiworld.lab.bench.report import Figure, judged
from multiworld.lab.bench.stats import Spread, paired_ratio, percentile
from multiworld.lab.injector import Fired, Injector
from multiworld.lab.workers import Worker, WorkerPool

_OTHERS = 4
_WINDOW_SECONDS = 1.0


def _world(name: str, members: list[Worker], store: TcpStoreAddress) -> None:
    calls = [worker.start(workloads.join, rank, len(members), store, name) for rank, worker in enumerate(members)]
    for call in calls:
        call.result(60)


def detection(pool: WorkerPool, store: TcpStoreAddress, quick: bool, progress: Progress) -> list[Figure]:
    """How long a receive goes on after its peer is killed or frozen."""
    found = []
    for fault, limit, turns in (("killed", 0.05, 5 if quick else 20), ("frozen", 1.0, 3 if quick else 10)):
        progress(f"peer {fault} while we wait in recv")
        seconds = [_noticed_after(pool, store, fault, turn) for turn in range(turns)]
        spread = Spread.of(seconds)
        text = f"p50 {spread.p50 * 1e3:,.1f} ms, most {spread.most * 1e3:,.1f} ms, {turns} times"
        name = f"peer {fault} while we wait in recv"
        found.append(judged(name, f"<= {limit * 1e3:,.0f} ms", text, spread.p50 <= limit, seconds=seconds))
    return found


def _noticed_after(pool: WorkerPool, store: TcpStoreAddress, fault: str, turn: int) -> float:
    survivor, victim = pool.worker("survivor"), pool.worker("victim")
    name = f"detect-{fault}-{turn}"
    _world(name, [survivor, victim], store)
    waiting = survivor.start(acts.receive, name, 1)
    survivor.wait_for("receiving")
    time.sleep(0.3 + 0.037 * turn)  # not in step with the heartbeat
    fired = _strike(Injector(), fault, victim)
    noticed: float = waiting.result(30)
    for worker in (survivor, victim):
        pool.dismiss(worker)
    return noticed - fired.at


def _strike(injector: Injector, fault: str, victim: Worker) -> Fired:
    return injector.kill(victim) if fault == "killed" else injector.freeze(victim)


def isolation(pool: WorkerPool, store: TcpStoreAddress, quick: bool, progress: Progress) -> list[Figure]:
    """Latency and rate of other worlds in windows with and without a break, in turns."""
    progress("a break in one world against the others")
    leader, partner = pool.worker("leader"), pool.worker("partner")
    names = [f"other-{number}" for number in range(_OTHERS)]
    for name in names:
        _world(name, [leader, partner], store)
    calm: list[list[float]] = []
    struck: list[list[float]] = []
    for turn in range(5 if quick else 15):
        order = (False, True) if turn % 2 else (True, False)
        for strike in order:
            (struck if strike else calm).append(_window(pool, store, (leader, partner), names, turn, strike))
    for worker in (leader, partner):
        pool.dismiss(worker)
    p99 = paired_ratio([percentile(w, 0.99) for w in struck], [percentile(w, 0.99) for w in calm])
    rate = paired_ratio([len(w) for w in struck], [len(w) for w in calm])
    return [
        judged(
            "break in one world: p99 of the others", "unchanged", f"{p99.text} x", p99.low <= 1.05, ratio=p99.as_json()
        ),
        judged(
            "break in one world: rate of the others",
            "unchanged",
            f"{rate.text} x",
            rate.high >= 0.97,
            ratio=rate.as_json(),
        ),
    ]


def _window(
    pool: WorkerPool, store: TcpStoreAddress, pair: tuple[Worker, Worker], names: list[str], turn: int, strike: bool
) -> list[float]:
    """Round trips in the other worlds, with a member of one more world there, killed in the middle if ``strike``."""
    leader, partner = pair
    victim = pool.worker("victim")
    name = f"struck-{turn}-{strike}"
    _world(name, [leader, victim], store)
    waiting = leader.start(acts.receive, name, 1)
    leader.wait_for("receiving")
    echoing = partner.start(acts.echo, names)
    calling = leader.start(acts.call, names, _WINDOW_SECONDS)
    leader.wait_for("calling")
    time.sleep(_WINDOW_SECONDS / 3)
    if strike:
        Injector().kill(victim)
    trips: list[float] = calling.result(30)
    echoing.result(30)
    if not strike:
        Injector().kill(victim)
    waiting.result(30)
    pool.dismiss(victim)
    return trips


def rejoin(pool: WorkerPool, store: TcpStoreAddress, host: Worker, progress: Progress) -> list[Figure]:
    """A world of two that is used, broken and joined again, a hundred times."""
    progress("rejoin, a hundred times")
    members = [pool.worker("rejoin-0"), pool.worker("rejoin-1")]
    _world("rejoin", members, store)
    _all(members, acts.break_and_rejoin, "rejoin", 3)
    time.sleep(0.5)  # what is freed is freed in the background
    before, keys = [worker.run(acts.held) for worker in members], host.run(acts.store_keys, store)
    seconds = [value for each in _all(members, acts.break_and_rejoin, "rejoin", 100) for value in each]
    time.sleep(0.5)
    after, left = [worker.run(acts.held) for worker in members], host.run(acts.store_keys, store)
    for worker in members:
        pool.dismiss(worker)
    spread = Spread.of(seconds)
    grown = [sum(a.threads - b.threads for a, b in zip(after, before, strict=True)),
             sum(a.descriptors - b.descriptors for a, b in zip(after, before, strict=True)), left - keys]  # fmt: skip
    text = f"p50 {spread.p50 * 1e3:,.1f} ms, p99 {spread.p99 * 1e3:,.1f} ms, most {spread.most * 1e3:,.1f} ms"
    leaks = f"{grown[0]} threads, {grown[1]} descriptors, {grown[2]} keys more"
    return [
        judged("rejoin under the same name", "<= 1 s", text, spread.p99 <= 1.0, **spread.as_json()),
        judged("rejoin 100 times: left behind", "nothing", leaks, all(n <= 0 for n in grown), timed=False, grown=grown),
    ]


def _all(members: list[Worker], function: object, *args: object) -> list[list[float]]:
    calls = [worker.start(function, *args) for worker in members]  # type: ignore[arg-type]
    return [call.result(180) for call in calls]
