"""`explain`: what a patch would need, before anything is compiled."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from build import releases, sources
from build.anypatch import beside as others
from build.anypatch import patchset
from build.anypatch.plan import MOST_UNITS, Limits, Plan, Serves, changes, make
from build.console import console, counted, note, step, table
from build.git import Git
from build.overlay import declarations
from build.series.apply import commit_patches


def show(plan: Plan) -> None:
    """Print what serves each changed file, and the units to compile."""
    shown = table("what the patch needs", "file", "served by", "why")
    for row in plan.rows:
        shown.add_row(escape(row.path), row.serves.value, escape(row.why))
    console.print(shown)
    for unit, why in plan.units.items():
        note(f"{unit} ({plan.owners.of(unit)}): {why}")


def explain(
    release: Annotated[str, typer.Option(help="the PyTorch release, e.g. 2.6.0")],
    patches: Annotated[Path | None, typer.Option(help="a patch file, or a folder of them")] = None,
    from_branch: Annotated[str, typer.Option(help="PATH@REV: the commits since the release's tag")] = "",
    source: Annotated[Path | None, typer.Option(help="checkout, tarball or folder of the release")] = None,
    define: Annotated[list[str] | None, typer.Option(help="NAME=1 or NAME=0: how the wheel was built")] = None,
    beside: Annotated[Path | None, typer.Option(help="wheel or environment that may have an overlay")] = None,
    most_units: Annotated[int, typer.Option(help="units that may be compiled for one changed header")] = MOST_UNITS,
) -> None:
    """Tell whether an overlay can serve a patch, with which units and about how long; compile nothing."""
    entry = releases.get(release)
    chosen = patchset.chosen(entry, patches, from_branch)
    tree = sources.acquire(entry, source)
    git = Git(tree.repo)
    with patchset.applying(tree.repo, patches, from_branch):
        head, _ = commit_patches(git, tree.base, chosen)
    change = changes(git, tree.base, head, patchset.outside(chosen))
    plan = make(tree.repo, change, Limits(most_units, tuple(define or ()), entry.defines))
    show(plan)
    plan.require()
    # Tell which changed headers leave extensions with other code, as far as their texts show it.
    paths = [row.path for row in plan.rows if row.serves in {Serves.HEADER, Serves.ALONE}]
    blobs = git.blobs([f"{commit}:{path}" for path in paths for commit in (tree.base, head)])
    texts = [(blob or b"").decode("utf-8", "surrogateescape") for blob in blobs]
    for path, old, new in zip(paths, texts[::2], texts[1::2], strict=True):
        if old and (found := declarations.differing(old, new)) != []:
            said = "; ".join(found or ["the build compares its types"])
            step(f"{path}: extensions have it compiled in, if the wheel has it: {said} (--extensions-rebuilt)")
    others.refuse(beside, tree.repo, plan.units, "the overlay of this patch")
    cores = len(os.sched_getaffinity(0))
    if plan.units:
        need = f"about {plan.seconds(cores)} s on {cores} cores, and units with hidden symbols that are needed"
        step(f"{counted(len(plan.units), 'unit')}, {need}")
    if plan.per_python:
        step("the wheels are for one Python version: units of libtorch_python are compiled against its headers")
    if plan.python:
        step("no overlay wheel: it changes no file of torch, and would lack the changes of Python files")
    elif not plan.units:
        step("no overlay wheel: nothing is compiled, and it changes no file of torch")
