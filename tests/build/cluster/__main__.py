"""Measure: `python -m tests.build.cluster [HOSTS]` installs on that many hosts of this machine, 20 by default.

Prints the time of the whole installation, that of the slowest host in it, and that of one host alone. The promise is
that all hosts take at most 1.3 times as long as the slowest one. On one machine they share its processors, so one host
alone is faster.
"""

from __future__ import annotations

import asyncio
import os
import sys
import tempfile
import time
from pathlib import Path

from build.bench import figures
from build.console import console
from ci.cluster import inventory
from ci.cluster.release import Wanted
from ci.cluster.rollout import Action, Outcome, Plan, Result, Rollout
from ci.cluster.ssh import Way
from multiworld.lab.bench.load import LoadMeter
from tests.build.cluster.hosts import Cluster, cluster, offer
from tests.build.official.server import Index, serving

LIMIT = 1.3


def _install(made: Cluster, index: Index, hosts: str) -> tuple[float, list[Result]]:
    wanted = Wanted(("torch-multiworld==1.0",), indexes=(f"{index.url}/simple",))
    plan = Plan(Action.INSTALL, wanted, Way(made.config), "~/multiworld")
    began = time.monotonic()
    results = asyncio.run(Rollout(plan, lambda *_: None).run(inventory.listed(hosts)))
    assert all(result.outcome is Outcome.INSTALLED for result in results), results
    return time.monotonic() - began, results


def main(count: int) -> int:
    """Print the figures; return 1 when the promise is missed."""
    meter = LoadMeter()
    with tempfile.TemporaryDirectory(prefix="hosts-") as folder, serving(Index()) as index:
        os.environ["UV_CACHE_DIR"] = str(Path(folder, "uv"))
        offer(index, "1.0", Path(folder))
        with cluster(Path(folder, "cluster")) as made:
            for number in range(count + 1):
                made.add(f"node{number:02d}")
            alone, _ = _install(made, index, "node00")
            whole, results = _install(made, index, f"node[01-{count:02d}]")
    slowest = max(result.seconds for result in results)
    ratio = figures.of_samples(f"{count} hosts / the slowest of them", [whole / slowest], LIMIT, "x")
    console.print(figures.table([ratio], "ci/install on this machine", meter.read()))
    console.print(f"{count} hosts {whole:.1f} s, the slowest of them {slowest:.1f} s, one host alone {alone:.1f} s")
    return int(ratio.value > LIMIT)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if sys.argv[1:] else 20))
