"""`gpu-bundle`: pack the tests on a device for a machine without network."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer

from build import paths
from build.console import note, step
from build.errors import UsageError
from build.gpu.bundle import make


def gpu_bundle(
    python: Annotated[str, typer.Option(help="CPython version of the other machine")] = "3.12",
    torch: Annotated[str, typer.Option(help="its torch: the overlay wheel built for it is packed, if any")] = "2.11.0",
    dist: Annotated[Path, typer.Option(help="folder with the results of `build`")] = paths.DIST,
    into: Annotated[Path | None, typer.Option(help="the file, default dist/gpu/multiworld-gpu-cpXY.zip")] = None,
) -> None:
    """Pack checkout, wheels and a program that runs the tests on an NVIDIA device without network."""
    if not re.fullmatch(r"3\.\d+", python):
        raise UsageError(f"{python!r} is not a CPython version", remedy="e.g. --python 3.12")
    final = (into or dist / "gpu" / f"multiworld-gpu-cp{python.replace('.', '')}.zip").absolute()
    overlay = max((dist.absolute() / torch).glob("multiworld_torch_overlay-*.whl"), default=None)
    made = make(final, python, overlay)
    step(f"{final.stat().st_size / 1e6:.1f} MB: {final}")
    used = made["overlay"] or f"none is built for {torch}"
    note(f"{len(made['packages'])} packages for Python {python}; overlay: {used}")
    for name in made["modified"]:
        note(f"packed with changes that are not committed: {name}")
    step(f"there: python3 -m zipfile -e {final.name} FOLDER && python3 FOLDER/run.py --out RESULTS")
