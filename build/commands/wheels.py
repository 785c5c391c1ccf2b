"""`wheels`: the package's own wheel, for every CPython from 3.10 on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from build import package, paths
from build.console import step


def wheels(
    dist: Annotated[Path, typer.Option(help="folder with the results; `wheelhouse` publishes it")] = paths.DIST,
) -> None:
    """Build the package's wheel into dist/torch-multiworld, and try it on every CPython that can be had."""
    step(f"made: {package.make(dist.absolute() / 'torch-multiworld')}")
