"""The whole bench: operations in turns with plain torch.distributed, the parts that were asked for, one report."""

from __future__ import annotations

import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch

from multiworld.errors import InvalidArgument
from multiworld.lab.bench import acts, parts
from multiworld.lab.bench.parts import Progress, Setup, everywhere
from multiworld.lab.bench.report import BenchReport, Comparison, Figure, LoadMeter, Spread, judged, paired_ratio
from multiworld.lab.context import serve_store
from multiworld.lab.workers import Worker, WorkerPool, log_folder
from multiworld.version import VERSION

#: bytes to the turns of one round, so that a round takes some ten milliseconds
SIZES = {4: 100, 4_000: 100, 400_000: 40, 4_000_000: 8, 64_000_000: 2}
QUICK_SIZES = {4: 100, 400_000: 40, 4_000_000: 8}

VARIANTS: dict[str, Callable[..., Any]] = {
    "plain": acts.turns_plain,
    "await": acts.turns_awaited,
    "sync": acts.turns_waiting,
}


def ratios(setup: Setup) -> tuple[Comparison, ...]:
    sizes = QUICK_SIZES if setup.quick else SIZES
    found: list[Comparison] = []
    with setup.workers("bench-0", "bench-1") as pair:
        for call in [worker.start(acts.set_up, rank, setup.store) for rank, worker in enumerate(pair)]:
            call.result(60)
        setup.join([acts.WORLD], pair)
        for name, workload in acts.WORKLOADS.items():
            for nbytes, turns in sizes.items() if workload.sized else ((0, 100),):
                setup.progress(f"{name}, {nbytes:,} bytes")
                found += _compare(pair, name, nbytes, max(1, turns // workload.payloads * 2), setup.rounds)
    return tuple(found)


def _compare(pair: list[Worker], name: str, nbytes: int, turns: int, rounds: int) -> list[Comparison]:
    seconds: dict[str, list[list[float]]] = {variant: [] for variant in VARIANTS}
    for number in range(rounds):
        names = list(VARIANTS)
        for variant in names[number % 3 :] + names[: number % 3]:  # each is first, second and last as often
            seconds[variant].append(everywhere(pair, VARIANTS[variant], name, nbytes, turns)[0])
    medians = {variant: [Spread.of(values).p50 for values in each] for variant, each in seconds.items()}
    spreads = {variant: Spread.of([v for values in each for v in values]) for variant, each in seconds.items()}
    ratios = {variant: paired_ratio(medians[variant], medians["plain"]) for variant in ("await", "sync")}
    return [Comparison(f"{name} ({v})", nbytes, spreads["plain"], spreads[v], ratio) for v, ratio in ratios.items()]


def figures(comparisons: tuple[Comparison, ...]) -> list[Figure]:
    found = []
    for row in comparisons:
        plain, world, times = row.plain_seconds.p50, row.world_seconds.p50, row.time_ratio
        if row.operation.startswith("round trip") and row.bytes <= 400_000:
            limit = 0.45 if row.operation.endswith("(sync)") and row.bytes <= 4_000 else 0.65
            text = f"{times.text} x; p50 {world * 1e6:,.0f} us, plain {plain * 1e6:,.0f} us"
            name = f"{row.operation}, {row.bytes:,} bytes, p50"
            found.append(judged(name, f"<= {limit} x plain", text, times.value <= limit, **asdict(row)))
        if row.operation.startswith("one way") and row.bytes >= 4_000_000:
            ratio = 1 / times.value
            rates = [acts.BURST * row.bytes / seconds / 1e9 for seconds in (world, plain)]
            interval = f"[{1 / times.high:.3f}, {1 / times.low:.3f}]"
            text = f"{ratio:.3f} {interval} x; {rates[0]:.2f} GB/s, plain {rates[1]:.2f} GB/s"
            name = f"{row.operation}, {row.bytes:,} bytes, throughput"
            found.append(judged(name, ">= 2 x plain", text, ratio >= 2, **asdict(row)))
    return found


_PARTS = parts.detection, parts.idle, parts.isolation, parts.rejoin, parts.joins, parts.large
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
