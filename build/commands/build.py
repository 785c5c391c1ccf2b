"""`build RELEASE`: the main job."""

from __future__ import annotations

import platform
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from build import paths
from build.anypatch.plan import MOST_UNITS
from build.console import console, step, table
from build.errors import NeedsFullBuildError, UsageError
from build.full.caching import CompilerCache
from build.full.toolchains import Kind
from build.overlay.model import Check
from build.pipeline import Own, Request, build_release
from build.record import BuildRecord


def _table(title: str, checks: Iterable[Check]) -> Table:
    shown = table(title, "check", "found")
    for check in checks:
        shown.add_row(("[green]ok[/] " if check.passed else "[red]no[/] ") + check.name, escape(check.detail[:160]))
    return shown


def _show(made: BuildRecord) -> None:
    console.print(_table(f"{made.provenance.version}: proven about the overlay", made.provenance.checks))
    for item in (made.patched, *([made.overlay] if made.overlay.name else [])):
        step(f"{item.size / 1e6:.1f} MB: {item.name}")


def _agreed(error: NeedsFullBuildError) -> bool:
    """Ask a person at a terminal whether a full build is wanted instead; nobody is asked on a pipe."""
    if not sys.stdin.isatty():
        return False
    console.print(str(error), markup=False)
    return typer.confirm("make a full build instead? Its plan is shown first, and a build takes hours")


def build(
    release: Annotated[str, typer.Argument(help="the PyTorch release, e.g. 2.6.0")],
    source: Annotated[str | None, typer.Option(help="checkout (PATH or PATH@REV), tarball or folder")] = None,
    python: Annotated[str, typer.Option(help="CPython version of the patched wheel")] = "",
    dist: Annotated[Path, typer.Option(help="folder for the results")] = paths.DIST,
    patches: Annotated[Path | None, typer.Option(help="your patch, or a folder of them, instead of the series")] = None,
    from_branch: Annotated[str, typer.Option(help="PATH@REV: your commits since the release's tag")] = "",
    label: Annotated[str, typer.Option(help="what the version of the wheels of your patches ends with")] = "",
    include: Annotated[
        list[Path] | None, typer.Option(exists=True, file_okay=False, help="folder of headers, e.g. of a submodule")
    ] = None,
    define: Annotated[list[str] | None, typer.Option(help="NAME=1 or NAME=0: how the wheel was built")] = None,
    beside: Annotated[Path | None, typer.Option(help="wheel or environment that may have an overlay")] = None,
    most_units: Annotated[int, typer.Option(help="units that may be compiled for one changed header")] = MOST_UNITS,
    extensions_rebuilt: Annotated[
        bool, typer.Option("--extensions-rebuilt", help="all extensions that include changed headers are compiled anew")
    ] = False,
    tested: Annotated[bool, typer.Option("--test/--no-test", help="for nox: whether the tests follow")] = True,
    full: Annotated[bool, typer.Option("--full", help="compile all of PyTorch, which takes hours")] = False,
    plan: Annotated[bool, typer.Option("--plan", help="with --full: print the plan, and stop")] = False,
    toolchain: Annotated[Kind, typer.Option(help="with --full: where compilers and CUDA come from")] = Kind.SYSTEM,
    arch: Annotated[str, typer.Option(help="with --full: architectures, e.g. '8.0;9.0+PTX'")] = "",
    jobs: Annotated[int | None, typer.Option(min=1, help="compilers at once; default by cores and free memory")] = None,
    compiler_cache: Annotated[CompilerCache, typer.Option(help="with --full")] = CompilerCache.AUTO,
) -> None:
    """Build the patched wheel and the overlay wheel of RELEASE into dist/RELEASE, or with --full all of PyTorch."""
    del tested  # the session of nox reads it
    given = Path(source) if source else None

    python = python or ".".join(platform.python_version_tuple()[:2])

    def whole() -> None:
        from build.full import plan as plans  # with what few builds need, which takes long to load
        from build.full import torch

        project = torch.project(release, python, targets=arch, source=given)
        planned = plans.make(project, toolchain, compiler_cache.chosen(), jobs)
        plans.show(planned)
        plans.require(planned)
        if not plan:
            from build.full import engine, record

            made = engine.build(planned, dist.absolute() / release)
            shown = _table(f"{made.provenance.version}: full build", made.checks)
            for probe in made.probes:
                stock = "not run on stock" if probe.stock == record.NOT_RUN else f"{probe.stock} on stock"
                shown.add_row(f"[green]ok[/] {probe.name}", f"exit status {stock}, {probe.built} on this wheel")
            console.print(shown)
            step(f"{made.wheel.size / 1e6:.1f} MB: {made.wheel.name}")

    if full or plan:
        if patches or from_branch or label or include or define or beside:
            others = "--patches, --from-branch, --label, --include, --define, --beside"
            what = f"--full builds the project's series: no {others}"
            raise UsageError(what, remedy="leave them out, or leave out --full for an overlay of your patches")
        whole()
        return
    folders, macros = tuple(include or ()), tuple(define or ())
    own = Own(patches, from_branch, label, folders, most_units, macros, beside, extensions_rebuilt)
    request = Request(release, python, given, dist.absolute(), own=own, jobs=jobs)
    try:
        made = build_release(request)
    except NeedsFullBuildError as error:
        if request.own.of_user or not _agreed(error):  # a full build takes the project's series only
            raise
        whole()
        return
    _show(made)
    step(f"record: {request.folder / 'build.json'}, log: {request.folder / 'build.log'}")
