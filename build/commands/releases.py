"""`releases`: what each known release needs, the progress of its patches, and what is built and proven here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from build import paths, record
from build.console import console, note
from build.console import table as console_table
from build.releases import Release, load
from build.series import manifest as manifests
from build.series.overview import Progress, progress
from build.wheeltest import results


def built(folder: Path) -> str:
    """Return in words what is built in a release's folder."""
    made = record.read(folder)
    if made is None:
        return "no"
    if not (folder / made.patched.name).is_file():
        return "wheel removed"
    return f"{made.provenance.version}, Python {made.python}"


def proven(folder: Path) -> str:
    tests, made = results.read(folder), record.read(folder)
    if tests is None:
        return "not tested"
    if made is None or tests.patched_sha256 != made.patched.sha256:
        return "an older build"
    return "yes" if tests.proven else "no: tests failed"


def sources(release: Release) -> str:
    debian = f", Debian {release.debian.suite}" if release.debian else ""
    return f"git {release.tag}{debian}, --source"


def patches(release: Release) -> str:
    known = {name: manifests.load(manifests.folder(name)).release.get(release.version) for name in release.series}
    return ", ".join(f"{name}: {progress(entry).word}" for name, entry in known.items()) or Progress.NONE.word


def table(releases: list[Release], dist: Path) -> Table:
    caption = "CUDA, NCCL and C++ ABI are those of the official wheel"
    columns = ("release", "CUDA", "NCCL", "ABI", "g++", "Python", "sources", "patches", "built here", "proven here")
    shown = console_table("PyTorch releases", *columns, caption=caption)
    for release in releases:
        wheel, folder = release.wheel, dist / release.version
        needs = (wheel.cuda, wheel.nccl, str(int(wheel.cxx11_abi)), f">= {release.min_gcc}")
        pythons = f"{wheel.pythons[0]} - {wheel.pythons[-1]}"
        state = (patches(release), built(folder), proven(folder))
        shown.add_row(release.version, *needs, pythons, sources(release), *state)
    return shown


def releases(
    dist: Annotated[Path, typer.Option(help="folder with the results of `build` and `test`")] = paths.DIST,
) -> None:
    """Print what each release needs, the progress of its patches, and what is built and proven here."""
    known = list(load().values())
    console.print(table(known, dist))
    for item in (item for item in Progress if item is not Progress.NOT_NEEDED):
        note(f"{item.word}: {item.meaning}")
    for release in known:
        if release.notes:
            note(f"{release.version}: {release.notes}")
