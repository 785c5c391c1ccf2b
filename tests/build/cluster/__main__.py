"""Measure: `python -m tests.build.cluster [HOSTS]` installs on that many hosts of this machine over ssh, 20 by default.

The promises: hosts that are as wanted take a minute at most, Ansible's own start with it; an upgrade of one host takes
5 s, and fetches 2 MB of all indexes together, although the release has a wheel of 40 MB.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path

from build.console import console
from docs.bench import figures
from multiworld.lab.bench.report import LoadMeter
from tests.build.cluster.conftest import Site
from tests.build.cluster.hosts import cluster, offer, offer_named
from tests.build.official.server import Index, serving


def main(count: int) -> int:
    """Print the figures; return 1 when a promise is missed."""
    meter = LoadMeter()
    with tempfile.TemporaryDirectory(prefix="hosts-") as folder, serving(Index(metadata=True, tags=True)) as index:
        site = Site(Path(folder), index)
        for version in ("1.0", "2.0"):
            offer(index, version, site.top)
        offer_named(index, "big", "1.0", site.top, {"big/data": os.urandom(20 << 20).hex()})
        with cluster(site.top / "cluster") as made:
            for number in range(1, count + 1):
                made.add(f"node{number:02d}")

            def seconds(version: str, hosts: str) -> float:
                began = time.monotonic()
                wanted = (f"torch-multiworld=={version}", "big", site.source, f"--hosts={hosts}", *made.ssh)
                status, _, said = site.run(*wanted)
                assert status == 0, said
                return time.monotonic() - began

            first, again = seconds("1.0", f"node[01-{count}]"), seconds("1.0", f"node[01-{count}]")
            before = index.sent
            upgrade = seconds("2.0", "node01")
            fetched = (index.sent - before) / 1e6
    rows = [
        figures.of_samples(f"{count} hosts that are as wanted", [again], 60.0, "s"),
        figures.of_samples("an upgrade of one host", [upgrade], 5.0, "s"),
        figures.of_samples("the same: fetched", [fetched], 2.0, "MB"),
    ]
    console.print(figures.table(rows, "ci/install on this machine", meter.read()))
    console.print(f"the first installation on {count} hosts: {first:.1f} s")
    return int(again > 60 or upgrade > 5 or fetched > 2)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if sys.argv[1:] else 20))
