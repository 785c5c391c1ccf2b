"""Part ``idle``: what worlds cost while nothing happens, and whether a busy machine raises a false alarm."""

from __future__ import annotations

import os

from multiworld.config import TcpStoreAddress
from multiworld.lab.bench import acts, workloads
from multiworld.lab.bench.ratios import Progress
from multiworld.lab.bench.report import Figure, judged
from multiworld.lab.workers import WorkerPool

_WORLDS = 200
_MEMBERS = 64


def idle(pool: WorkerPool, store: TcpStoreAddress, quick: bool, progress: Progress) -> list[Figure]:
    """CPU of a pending receive and of many idle worlds; false alarms under full load."""
    seconds = 3.0 if quick else 10.0
    members = [pool.worker("idle-0"), pool.worker("idle-1")]
    for call in [worker.start(workloads.join, rank, 2, store, "idle") for rank, worker in enumerate(members)]:
        call.result(60)
    progress("a pending recv")
    awaited = members[0].run(acts.cpu_of_receiving, "idle", 1, seconds, timeout=seconds + 30)
    found = [_share("a pending recv costs (await)", "<= 2 % of a core", awaited, 0.02)]
    progress(f"{_WORLDS} idle worlds")
    names = [f"idle-{number}" for number in range(_WORLDS)]
    joins = [worker.start(acts.join_many, names, rank, 2, store) for rank, worker in enumerate(members)]
    each = max(call.result(120) for call in joins)
    cpu = members[0].run(acts.cpu_of_idling, seconds, timeout=seconds + 30)
    found.append(
        _share(
            f"{_WORLDS} idle worlds in one process (joined in {each * 1e3:.1f} ms each)", "<= 5 % of a core", cpu, 0.05
        )
    )
    found.append(_false_alarms(pool, members[0], names, 5.0 if quick else 20.0, progress))
    waiting = members[0].run(acts.cpu_of_waiting, "idle", 1, seconds, timeout=seconds + 30)
    found.insert(1, _share("a pending recv costs (sync)", "<= 2 % of a core", waiting, 0.02))
    for worker in members:
        pool.dismiss(worker)
    found.append(_many_members(pool, store, seconds, progress))
    return found


def _many_members(pool: WorkerPool, store: TcpStoreAddress, seconds: float, progress: Progress) -> Figure:
    """CPU of one world of many processes, all of them together, and whether any suspects another."""
    progress(f"{_MEMBERS} idle members")
    members = [pool.worker(f"member-{rank}") for rank in range(_MEMBERS)]
    joins = [worker.start(workloads.join, rank, _MEMBERS, store, "many") for rank, worker in enumerate(members)]
    for call in joins:
        call.result(180)
    for worker in members:
        worker.run(acts.watch_suspicions)
    running = [worker.start(acts.cpu_of_idling, seconds) for worker in members]
    share = sum(call.result(seconds + 60) for call in running)
    alarms = sum(worker.run(acts.suspicions) for worker in members)
    for worker in members:
        pool.dismiss(worker)
    text = f"{share * 100:.2f} % of a core in all, {alarms} suspicions"
    name, good = f"{_MEMBERS} idle members", share <= 0.10 and not alarms
    return judged(name, "<= 10 % of a core in all, no suspicion", text, good, share=share, suspicions=alarms)


def _share(name: str, wanted: str, share: float, limit: float) -> Figure:
    return judged(name, wanted, f"{share * 100:.2f} % of a core", share <= limit, share=share)


def _false_alarms(pool: WorkerPool, worker: object, names: list[str], seconds: float, progress: Progress) -> Figure:
    progress("full CPU load")
    burners = [pool.worker(f"burner-{number}") for number in range(2 * (os.cpu_count() or 1))]
    for call in [burner.start(acts.burn, seconds) for burner in burners]:
        call.result(seconds + 30)
    for burner in burners:
        pool.dismiss(burner)
    broken = worker.run(acts.still_there, names)  # type: ignore[attr-defined]
    text = f"{len(broken)} of {len(names)} worlds broke in {seconds:.0f} s with {len(burners)} busy processes"
    return judged("false alarms under full CPU load", "none", text, not broken, timed=False, broken=len(broken))
