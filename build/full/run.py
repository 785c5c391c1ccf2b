"""`build RELEASE --full`: plan, question, build."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path

from rich.markup import escape
from rich.table import Table

from build.console import console, step
from build.full import plan as plans
from build.full import torch
from build.full.caching import CompilerCache
from build.full.engine import build
from build.full.record import NOT_RUN, FullRecord
from build.full.toolchains import Kind


@dataclass(frozen=True, slots=True)
class Options:
    """Options of a full build.

    Attributes:
        targets: architectures, default those of the official wheel.
        jobs: compilers at once, default as cores and memory allow.
        plan_only: whether to stop after the plan.
    """

    toolchain: Kind = Kind.SYSTEM
    caching: CompilerCache = CompilerCache.AUTO
    targets: str = ""
    jobs: int | None = None
    plan_only: bool = False


def full_build(release: str, python: str, dist: Path, source: Path | None, options: Options) -> FullRecord | None:
    """Print the plan of a full build of PyTorch and make it; return its record, None if only the plan was wanted.

    Args:
        dist: folder that gets a folder per release.
        source: a checkout with its submodules; default upstream's.

    Raises:
        UsageError: an architecture is not known to the release's CUDA version.
        EnvironmentUnfitError: this machine lacks something; the plan lists all of it.
        ToolError: as `engine.build`.
    """
    python = python or ".".join(platform.python_version_tuple()[:2])
    project = torch.project(release, python, targets=options.targets, source=source)
    plan = plans.make(project, options.toolchain, options.caching.chosen(), options.jobs)
    plans.show(plan)
    plans.require(plan)
    if options.plan_only:
        return None
    made = build(plan, dist / release)
    show(made)
    return made


def show(made: FullRecord) -> None:
    """Print what was shown of the wheel."""
    table = Table(title=f"{made.provenance.version}: full build")
    for column in ("check", "found"):
        table.add_column(column, overflow="fold")
    for check in made.checks:
        table.add_row(("[green]ok[/] " if check.passed else "[red]no[/] ") + check.name, escape(check.detail[:160]))
    for probe in made.probes:
        stock = "not run on stock" if probe.stock == NOT_RUN else f"{probe.stock} on stock"
        table.add_row(f"[green]ok[/] {probe.name}", f"exit status {stock}, {probe.built} on this wheel")
    console.print(table)
    step(f"{made.wheel.size / 1e6:.1f} MB: {made.wheel.name}")
