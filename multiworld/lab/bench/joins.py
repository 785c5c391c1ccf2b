"""Part ``joins``: many worlds joined at once by two processes."""

from __future__ import annotations

from multiworld.lab.bench import acts
from multiworld.lab.bench.report import Figure, judged
from multiworld.lab.bench.setup import Setup

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
