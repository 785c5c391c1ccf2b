"""`build RELEASE`: the main job."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from build import paths
from build.anypatch.plan import MOST_UNITS
from build.console import console, step
from build.pipeline import Request, build_release
from build.record import BuildRecord


def _show(made: BuildRecord) -> None:
    """Print what was proven, and what was built, with full names on a terminal of any width."""
    table = Table(title=f"{made.provenance.version}: proven about the overlay")
    for column in ("check", "found"):
        table.add_column(column, overflow="fold")
    for check in made.provenance.checks:
        table.add_row(("[green]ok[/] " if check.passed else "[red]no[/] ") + check.name, escape(check.detail[:160]))
    console.print(table)
    for item in (made.patched, *([made.overlay] if made.overlay.name else [])):
        step(f"{item.size / 1e6:.1f} MB: {item.name}")


def build(
    release: Annotated[str, typer.Argument(help="the PyTorch release, e.g. 2.6.0")],
    source: Annotated[str | None, typer.Option(help="checkout (PATH or PATH@REV), tarball or folder")] = None,
    python: Annotated[str, typer.Option(help="CPython version of the patched wheel")] = "",
    dist: Annotated[Path, typer.Option(help="folder for the results")] = paths.DIST,
    patches: Annotated[Path | None, typer.Option(help="your patch, or a folder of them, instead of the series")] = None,
    from_branch: Annotated[str, typer.Option(help="PATH@REV: your commits since the release's tag")] = "",
    label: Annotated[str, typer.Option(help="what the version of the wheels of your patches ends with")] = "",
    include: Annotated[list[Path] | None, typer.Option(help="folder of headers, e.g. of a submodule")] = None,
    define: Annotated[list[str] | None, typer.Option(help="NAME=1 or NAME=0: how the wheel was built")] = None,
    most_units: Annotated[int, typer.Option(help="units that may be compiled for one changed header")] = MOST_UNITS,
    tested: Annotated[bool, typer.Option("--test/--no-test", help="check that the wheel can be tested here")] = True,
) -> None:
    """Build the patched wheel and the overlay wheel of RELEASE into dist/RELEASE."""
    python = python or ".".join(platform.python_version_tuple()[:2])
    request = Request(
        release,
        python,
        Path(source) if source else None,
        dist.absolute(),
        tested and not label,
        patches=patches,
        branch=from_branch,
        label=label,
        include=tuple(include or ()),
        defines=tuple(define or ()),
        most_units=most_units,
    )
    _show(build_release(request))
    step(f"record: {request.folder / 'build.json'}, log: {request.folder / 'build.log'}")
