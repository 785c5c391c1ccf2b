"""`explain`: what a patch would need, before anything is compiled."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from build import releases, sources
from build.anypatch import patchset
from build.anypatch.plan import MOST_UNITS, Limits, Plan, make
from build.console import console, note, step
from build.git import Git
from build.series.apply import commit_patches
from build.series.model import PatchFile


def show(plan: Plan) -> None:
    """Print what serves each changed file, and the units to compile."""
    table = Table(title="what the patch needs")
    for column in ("file", "served by", "why"):
        table.add_column(column, overflow="fold")
    for row in plan.rows:
        table.add_row(escape(row.path), row.serves.value, escape(row.why))
    console.print(table)
    for unit, why in plan.units.items():
        note(f"{unit} ({plan.owners[unit]}): {why}")


def explain(
    release: Annotated[str, typer.Option(help="the PyTorch release, e.g. 2.6.0")],
    patches: Annotated[Path | None, typer.Option(help="a patch file, or a folder of them")] = None,
    from_branch: Annotated[str, typer.Option(help="PATH@REV: the commits since the release's tag")] = "",
    source: Annotated[Path | None, typer.Option(help="checkout, tarball or folder of the release")] = None,
    define: Annotated[list[str] | None, typer.Option(help="NAME=1 or NAME=0: how the wheel was built")] = None,
    most_units: Annotated[int, typer.Option(help="units that may be compiled for one changed header")] = MOST_UNITS,
) -> None:
    """Tell whether an overlay can serve a patch, with which units and about how long; compile nothing."""
    entry = releases.get(release)
    chosen = patchset.chosen(entry, patches, from_branch)
    tree = sources.acquire(entry, source)
    commit_patches(Git(tree.repo), tree.base, chosen)
    plan = make(tree.repo, _changed(chosen), Limits(most_units, tuple(define or ())), _left(chosen))
    show(plan)
    plan.require()
    cores = len(os.sched_getaffinity(0))
    step(f"{len(plan.units)} units, about {plan.seconds(cores)} s on {cores} cores, and the hidden symbols they need")
    if plan.python:
        step("the overlay wheel is left out: it would lack the changes of Python files")


def _changed(patches: tuple[PatchFile, ...]) -> set[str]:
    return {path for patch in patches for path in patch.paths}


def _left(patches: tuple[PatchFile, ...]) -> set[str]:
    """Return the changed paths that exist after the last patch."""
    left: set[str] = set()
    for change in (change for patch in patches for change in patch.changes):
        left -= {change.old_path or ""} if change.new_path != change.old_path else set()
        left |= {change.new_path} if change.new_path else set()
    return left
