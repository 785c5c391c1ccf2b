"""Part ``idle``: what worlds cost while nothing happens, and whether a busy machine raises a false alarm."""

from __future__ import annotations

import os

from multiworld.lab.bench import acts
from multiworld.lab.bench.report import Figure, judged
from multiworld.lab.bench.setup import Setup, everywhere
from multiworld.lab.workers import Worker

_WORLDS = 200
_MEMBERS = 64


def idle(setup: Setup) -> list[Figure]:
    """CPU of a pending receive and of many idle worlds; false alarms under full load."""
    seconds = 3.0 if setup.quick else 10.0
    with setup.workers("idle-0", "idle-1") as members:
        setup.join("idle", members)

        def share(function: object, *args: object) -> float:
            return float(members[0].run(function, *args, seconds, timeout=seconds + 30))  # type: ignore[arg-type]

        setup.progress("a pending recv")
        awaited = share(acts.cpu_of_receiving, "idle", 1)
        setup.progress(f"{_WORLDS} idle worlds")
        names = [f"idle-{number}" for number in range(_WORLDS)]
        joins = [worker.start(acts.join_many, names, rank, 2, setup.store) for rank, worker in enumerate(members)]
        each = max(call.result(120) for call in joins)
        cpu = share(acts.cpu_of_idling)
        alarms = _false_alarms(setup, members[0], names, 5.0 if setup.quick else 20.0)
        waiting = share(acts.cpu_of_waiting, "idle", 1)
    joined = f"{_WORLDS} idle worlds in one process (joined in {each * 1e3:.1f} ms each)"
    costs = (("a pending recv costs (await)", awaited), ("a pending recv costs (sync)", waiting))
    found = [_share(name, share, 0.02) for name, share in costs]
    return [*found, _share(joined, cpu, 0.05), alarms, _many_members(setup, seconds)]


def _many_members(setup: Setup, seconds: float) -> Figure:
    """CPU of one world of many processes, all of them together, and whether any suspects another."""
    setup.progress(f"{_MEMBERS} idle members")
    with setup.workers(*(f"member-{rank}" for rank in range(_MEMBERS))) as members:
        setup.join("many", members)
        everywhere(members, acts.watch_suspicions)
        share = sum(everywhere(members, acts.cpu_of_idling, seconds, timeout=seconds + 60))
        alarms = sum(everywhere(members, acts.suspicions))
    text = f"{share * 100:.2f} % of a core in all, {alarms} suspicions"
    name, good = f"{_MEMBERS} idle members", share <= 0.10 and not alarms
    return judged(name, "<= 10 % of a core in all, no suspicion", text, good, share=share, suspicions=alarms)


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


_SECONDS = 20.0
_THREADS = 50


def joins(setup: Setup) -> list[Figure]:
    """A thousand joins at once, two members each, one store."""
    count = 300 if setup.quick else 1000
    setup.progress(f"{count} joins at once")
    names = [f"at-once-{number}" for number in range(count)]
    with setup.workers("joins-0", "joins-1") as members:
        calls = [m.start(acts.join_at_once, names, rank, 2, setup.store) for rank, m in enumerate(members)]
        each = [call.result(180) for call in calls]
    seconds, threads = max(s for s, _ in each), max(t for _, t in each)
    limit = _SECONDS * count / 1000
    name, few, text = f"{count} joins at once", threads <= _THREADS, f"{threads} in a process"
    return [
        judged(name, f"<= {limit:.0f} s", f"{seconds:.1f} s", seconds <= limit, seconds=seconds),
        judged(f"{name}: threads", f"<= {_THREADS}", text, few, timed=False, threads=threads),
    ]
