"""`test RELEASE`: test the wheels that were built."""
# ruff: noqa: PT028 - the command, no test of pytest

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from build import paths
from build.console import note, step
from build.errors import UsageError
from build.wheeltest.results import NAME, SIMULATED
from build.wheeltest.suite import Extent, prove_release


def test(
    release: Annotated[str, typer.Argument(help="the PyTorch release, e.g. 2.6.0")],
    python: Annotated[str, typer.Option(help="CPython version of the wheel, default the last build's")] = "",
    dist: Annotated[Path, typer.Option(help="folder with the results of `build`")] = paths.DIST,
    multiworld: Annotated[bool, typer.Option(help="run multiworld's own tests as well")] = True,
    stock: Annotated[bool, typer.Option("--stock", help="test the stock wheel even if its record is current")] = False,
    whole: Annotated[bool, typer.Option("--whole", help="run all of multiworld's tests")] = False,
    first: Annotated[bool, typer.Option("--first", help="only every probe, and failures of NCCL")] = False,
) -> None:
    """Install both wheel forms and the stock wheel into fresh environments, and run their tests."""
    if first and (whole or not multiworld):
        raise UsageError("--first goes with neither --whole nor --no-multiworld", remedy="leave one of them out")
    extent = Extent.FIRST if first else Extent.WHOLE if whole else Extent.SUITES
    found = prove_release(release, dist.absolute(), multiworld=multiworld, python=python, stock=stock, extent=extent)
    step(f"{found.version} is proven on Python {found.python}: {dist / release / NAME}")
    if first:
        served = any(run.suite == SIMULATED for run in found.runs)  # not with a torch that is too old for the package
        failures = ", and by failures of NCCL in real processes" if served else ""
        suites = ", and multiworld's core, faults and drivers" if served else ""
        note(f"proven by every probe on stock, patched and overlay{failures}")
        note(f"`nox -s test-{release}` adds the harness's own tests{suites}")
