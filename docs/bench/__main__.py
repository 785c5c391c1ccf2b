"""`nox -s bench -- [NAME…]`: measure the figures the project promises; those of ports are in docs/bench/porting."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from build import paths, record, releases
from build.cli import guarded, only, run
from build.console import console, note, step
from build.errors import ProbeError, UsageError
from docs.bench import figures
from multiworld.lab.bench.report import LoadMeter

#: The functions that measure, in `docs.bench`; all but the last measure a build in dist/.
MEASURES = {
    "overlay": "overlay.measure",
    "import": "imports.measure",
    "verify": "overlay.verify",
    "nccl": "nccl.measure",
    "wheelhouse": "wheelhouse.measure",
}


def _release(wanted: str, dist: Path) -> str:
    """Return the named release, else the newest that was built; empty if none was built."""
    if wanted:
        return releases.get(wanted).version
    known = [name for name in releases.load() if record.read(dist / name) is not None]
    return known[-1] if known else ""


def bench(
    names: Annotated[list[str] | None, typer.Argument(help=f"{', '.join(MEASURES)}; default all that can run")] = None,
    release: Annotated[str, typer.Option(help="a release that was built, default the newest such")] = "",
    dist: Annotated[Path, typer.Option(help="folder with the results of `build`")] = paths.DIST,
    rounds: Annotated[int, typer.Option(help="rounds of `import torch`, and of worlds on NCCL", min=3)] = 15,
    repeats: Annotated[int, typer.Option(help="how often builds are measured", min=1)] = 3,
    source: Annotated[Path | None, typer.Option(help="where the release's sources are, default: found")] = None,
    json: Annotated[Path | None, typer.Option(help="write the figures to this file as well")] = None,
) -> None:
    """Measure the promised figures on this machine; on a busy one, none is judged as missed."""
    from docs.bench.overlay import Subject

    dist, wanted = dist.absolute(), names or [name for name in MEASURES if name != "nccl" or find_spec("torch")]
    if strange := [name for name in wanted if name not in MEASURES]:
        raise UsageError(f"unknown benchmark: {', '.join(strange)}", remedy="use some of: " + ", ".join(MEASURES))
    if "nccl" in wanted and find_spec("torch") is None:  # this process is to be one of a world
        raise UsageError("this environment has no torch", remedy="nox -s bench -- nccl, which installs it")
    meter, of_wheels = LoadMeter(), [name for name in wanted if name != "wheelhouse"]
    subject = Subject(_release(release, dist) if of_wheels else "", dist, source, rounds, repeats)
    if of_wheels and not subject.release:
        if names:
            raise UsageError(f"{dist} holds no build to measure", remedy="nox -s build-2.6.0")
        note(f"{' and '.join(of_wheels)}: {dist} holds no build to measure")
        wanted = ["wheelhouse"]
    found: list[figures.Figure] = []
    for module, _, function in (MEASURES[name].partition(".") for name in MEASURES if name in wanted):
        found += getattr(import_module(f"docs.bench.{module}"), function)(subject)
    load = meter.read()
    console.print(figures.table(found, f"{subject.release or 'wheelhouse'} on this machine", load))
    note(str(load))
    if json is not None:
        figures.write(found, json, load)
        step(f"figures: {json}")
    if missed := [item.name for item in found if item.verdict_under(load) is figures.Verdict.MISSED]:
        raise ProbeError(f"{len(missed)} promised figures are missed: {', '.join(missed)}")


if __name__ == "__main__":
    sys.exit(run(lambda: guarded(only(bench))))
