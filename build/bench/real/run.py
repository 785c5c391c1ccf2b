"""`bench porting --real`: run it on all packages, print the tables, write the figures."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

from build import signals
from build.bench.real import archives, stacks
from build.bench.real.figures import kept, lines_of, tables_of, to_json
from build.bench.real.measure import CaseScore, measure
from build.bench.real.packages import Package, load
from build.console import console, note, progress, step
from build.errors import SourceError
from build.paths import atomic_write

#: Fewer packages are not a benchmark.
ENOUGH = 30


def bench(jobs: int = 0, json: Path | None = None) -> bool:
    """Measure and show all packages; return whether the promised figures are kept.

    Args:
        jobs: processes at once, default one for each core.
        json: file for the scores of every hunk.

    Raises:
        SourceError: too few of the packages can be had.
    """
    packages = _fetched()
    scores = sorted(
        (score for found in _measured(packages, jobs or os.cpu_count() or 1) for score in found),
        key=lambda item: (item.package, item.patch),
    )
    console.print(tables_of(scores))
    for line in lines_of(scores):
        note(line)
    if json is not None:
        with atomic_write(json) as part:
            part.write_bytes(to_json(scores))
        step(f"scores: {json}")
    return kept(scores)


def _fetched() -> list[Package]:
    """Fetch the sources of the packages whose stacks are not rebuilt yet."""
    packages = load()
    missing = [item for item in packages if not stacks.path(item).is_dir()]
    there = archives.fetch(missing)
    usable = [item for item in packages if item not in missing or item in there]
    names = {item.name for item in usable}
    if len(names) < ENOUGH:
        raise SourceError(
            f"only {len(names)} of {len(packages)} packages can be had",
            cause="the mirror does not have these versions any more",
            remedy="name newer versions in build/bench/real/packages.toml",
        )
    return usable


def _measured(packages: Sequence[Package], jobs: int) -> Iterator[tuple[CaseScore, ...]]:
    spawned = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(jobs, len(packages)), spawned, _end_with, (os.getpid(),))
    with progress() as bar, pool:
        task = bar.add_task("porting", total=len(packages), unit="packages")
        running = {pool.submit(measure, item): item for item in packages}
        try:
            for done in as_completed(running):
                yield done.result()
                bar.advance(task)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            for child in multiprocessing.active_children():
                child.terminate()
            raise
    for item in packages:  # at the end: two packages may have a tarball in common
        archives.discard(item)


def _end_with(parent: int) -> None:
    """Let a worker end with its parent, and with the commands that it runs."""
    os.environ[signals.END_WITH] = str(parent)
    signals.handle()
