"""`bench [NAME…]`: measure the figures the project promises; those of ports are in docs/bench/porting."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from build import paths, record, releases
from build.bench import figures
from build.console import console, note, step
from build.errors import ProbeError, UsageError
from multiworld.lab.bench.load import Load, LoadMeter

NAMES = ("overlay", "import", "verify", "nccl", "wheelhouse")
#: These measure a build in dist/.
_OF_BUILD = ("overlay", "import", "verify", "nccl")


def _release(wanted: str, dist: Path) -> str:
    """Return the named release, else the newest that was built; empty if none was built."""
    if wanted:
        return releases.get(wanted).version
    known = [name for name in releases.load() if record.read(dist / name) is not None]
    return known[-1] if known else ""


def bench(
    names: Annotated[
        list[str] | None,
        typer.Argument(help="overlay, import, verify, nccl, wheelhouse; default all that can run"),
    ] = None,
    release: Annotated[str, typer.Option(help="a release that was built, default the newest such")] = "",
    dist: Annotated[Path, typer.Option(help="folder with the results of `build`")] = paths.DIST,
    rounds: Annotated[int, typer.Option(help="rounds of `import torch`, and of worlds on NCCL", min=3)] = 15,
    repeats: Annotated[int, typer.Option(help="how often builds are measured", min=1)] = 3,
    source: Annotated[Path | None, typer.Option(help="where the release's sources are, default: found")] = None,
    json: Annotated[Path | None, typer.Option(help="write the figures to this file as well")] = None,
) -> None:
    """Measure the promised figures on this machine; on a busy one, none is judged as missed."""
    from build.bench import imports, overlay, verify, wheelhouse

    dist, wanted = dist.absolute(), names or [name for name in NAMES if name != "nccl" or _has_torch()]
    if strange := [name for name in wanted if name not in NAMES]:
        raise UsageError(f"unknown benchmark: {', '.join(strange)}", remedy="use some of: " + ", ".join(NAMES))
    found: list[figures.Figure] = []
    meter = LoadMeter()
    of_wheels = [name for name in wanted if name in _OF_BUILD]
    subject = _release(release, dist) if of_wheels else ""
    if of_wheels and not subject and names:
        raise UsageError(f"{dist} holds no build to measure", remedy="nox -s build-2.6.0")
    if of_wheels and not subject:
        note(f"{' and '.join(of_wheels)}: {dist} holds no build to measure")
    measures: dict[str, Callable[[], list[figures.Figure]]] = {
        "overlay": lambda: overlay.measure(subject, dist, repeats, source),
        "import": lambda: imports.measure(subject, dist, rounds),
        "verify": lambda: verify.measure(subject, dist, source),
        "nccl": lambda: _nccl(subject, dist, rounds),
        "wheelhouse": lambda: wheelhouse.measure(repeats),
    }
    for name, measure in measures.items():
        if name in wanted and (subject or name not in _OF_BUILD):
            found += measure()
    missed = _judge(found, subject, meter.read(), json)
    if missed:
        raise ProbeError(f"{len(missed)} promised figures are missed: {', '.join(missed)}")


def _has_torch() -> bool:
    """Return whether this process can be one of a world; the tools' own environment has no torch."""
    return find_spec("torch") is not None


def _nccl(subject: str, dist: Path, rounds: int) -> list[figures.Figure]:
    if not _has_torch():
        raise UsageError("this environment has no torch", remedy="nox -s bench -- nccl, which installs it")
    from build.bench import device

    return device.measure(subject, dist, rounds)


def _judge(found: list[figures.Figure], subject: str, load: Load, json: Path | None) -> list[str]:
    """Show the figures, write them to `json`, and return the names of those that are missed."""
    if found:
        console.print(figures.table(found, f"{subject or NAMES[-1]} on this machine", load))
        note(str(load))
    if json is not None:
        figures.write(found, json, load)
        step(f"figures: {json}")
    return [item.name for item in found if item.verdict_under(load) is figures.Verdict.MISSED]
