"""The whole bench: a pool of workers, the parts that were asked for, one report."""

from __future__ import annotations

import os
import platform
from collections.abc import Sequence

import torch

from multiworld.errors import InvalidArgument
from multiworld.lab.bench import parts
from multiworld.lab.bench.large import large
from multiworld.lab.bench.ratios import figures, ratios
from multiworld.lab.bench.report import BenchReport, LoadMeter
from multiworld.lab.bench.setup import Progress, Setup
from multiworld.lab.context import serve_store
from multiworld.lab.workers import WorkerPool, log_folder
from multiworld.version import VERSION

_PARTS = parts.detection, parts.idle, parts.isolation, parts.rejoin, parts.joins, large
_FIGURES = {part.__name__: part for part in _PARTS}
PARTS = ("ratios", *_FIGURES)


def run(quick: bool, only: Sequence[str], rounds: int, progress: Progress) -> BenchReport:
    """Measure; ``progress`` gets a line at each step.

    Args:
        only: some of ``PARTS``; empty for all.
        rounds: interleaved rounds per size and operation; five if ``quick``.

    Raises:
        InvalidArgument: an unknown part.
    """
    wanted = only or PARTS
    if unknown := set(wanted) - set(PARTS):
        remedy = f"choose some of {', '.join(PARTS)}"
        raise InvalidArgument(what=f"unknown part {', '.join(sorted(unknown))}", remedy=remedy)
    before, meter = os.getloadavg(), LoadMeter()
    rounds = 5 if quick else rounds
    with log_folder("bench") as folder, WorkerPool(folder / "log") as pool:
        host = pool.worker("store")
        setup = Setup(pool, host, host.run(serve_store), rounds, quick, progress)
        comparisons = ratios(setup) if "ratios" in wanted else ()
        found = figures(comparisons)
        for name, part in _FIGURES.items():
            found += part(setup) if name in wanted else []
    load = meter.read()
    facts = {
        "multiworld": VERSION,
        "torch": torch.__version__,
        "Python": platform.python_version(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}",
        "load before": " ".join(f"{value:.2f}" for value in before),
        "load after": " ".join(f"{value:.2f}" for value in os.getloadavg()),
        "others": str(load),
        "rounds": str(rounds),
        "note": "plain and worlds were measured in turns in the same two processes; trust ratios more than times",
    }
    return BenchReport(facts, comparisons, tuple(figure.under(load) for figure in found))
