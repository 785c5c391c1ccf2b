"""The whole bench: a pool, the parts that were asked for, one report."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from multiworld.config import TcpStoreAddress
from multiworld.errors import InvalidArgument
from multiworld.lab.bench import external, faults, ratios
from multiworld.lab.bench.idle import idle
from multiworld.lab.bench.report import BenchReport, Comparison, Figure
from multiworld.lab.bench.strangers import strangers
from multiworld.lab.context import serve_store
from multiworld.lab.workers import Worker, WorkerPool
from multiworld.version import VERSION

PARTS = ("ratios", "detection", "idle", "isolation", "strangers", "rejoin")
Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What to measure.

    Args:
        quick: fewer sizes and repetitions.
        parts: some of ``PARTS``; empty for all.
        rounds: interleaved rounds per size and operation.
        pymultiworld: interpreter that has pymultiworld, to compare with; None for none.
    """

    quick: bool = False
    parts: tuple[str, ...] = ()
    rounds: int = 15
    pymultiworld: Path | None = None


def run(options: BenchOptions, progress: Progress) -> BenchReport:
    """Measure.

    Args:
        options: what.
        progress: called with one line at each step.

    Raises:
        InvalidArgument: a part that does not exist.
    """
    wanted = options.parts or PARTS
    if unknown := set(wanted) - set(PARTS):
        raise InvalidArgument(
            what=f"there is no part {', '.join(sorted(unknown))}",
            cause="it is misspelt, most likely",
            remedy=f"choose some of {', '.join(PARTS)}",
        )
    external.check(options.pymultiworld)
    before = os.getloadavg()
    with (
        tempfile.TemporaryDirectory(prefix="multiworld-bench-") as folder,
        WorkerPool(Path(folder, "workers.log")) as pool,
    ):
        host = pool.worker("store")
        store = host.run(serve_store)
        comparisons, figures = _measure(pool, host, store, options, wanted, progress)
    figures += external.compare(options.pymultiworld, progress)
    return BenchReport(comparisons, tuple(figures), _facts(before, options))


def _measure(
    pool: WorkerPool,
    host: Worker,
    store: TcpStoreAddress,
    options: BenchOptions,
    wanted: tuple[str, ...],
    progress: Progress,
) -> tuple[tuple[Comparison, ...], list[Figure]]:
    comparisons: tuple[Comparison, ...] = ()
    figures: list[Figure] = []
    if "ratios" in wanted:
        pair = ratios.make_pair(pool, store)
        comparisons = ratios.measure(pair, 5 if options.quick else options.rounds, options.quick, progress)
        figures += ratios.figures(comparisons)
        for worker in (pair.left, pair.right):
            pool.dismiss(worker)
    if "detection" in wanted:
        figures += faults.detection(pool, store, options.quick, progress)
    if "idle" in wanted:
        figures += idle(pool, store, options.quick, progress)
    if "isolation" in wanted:
        figures += faults.isolation(pool, store, options.quick, progress)
    if "strangers" in wanted:
        figures += strangers(pool, store, options.quick, progress)
    if "rejoin" in wanted:
        figures += faults.rejoin(pool, store, host, progress)
    return comparisons, figures


def _facts(before: tuple[float, float, float], options: BenchOptions) -> dict[str, str]:
    after = os.getloadavg()
    return {
        "multiworld": VERSION,
        "torch": torch.__version__,
        "Python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}",
        "load before": " ".join(f"{value:.2f}" for value in before),
        "load after": " ".join(f"{value:.2f}" for value in after),
        "rounds": str(5 if options.quick else options.rounds),
        "note": "plain and worlds were measured in turns in the same two processes; trust ratios more than times",
    }
