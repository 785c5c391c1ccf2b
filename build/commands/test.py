"""`test RELEASE`: prove what was built."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from build import paths
from build.console import step
from build.wheeltest.suite import prove_release


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command("test")(prove)


def prove(
    release: Annotated[str, typer.Argument(help="the PyTorch release, e.g. 2.6.0")],
    dist: Annotated[Path, typer.Option(help="folder with the results of `build`")] = paths.DIST,
    multiworld: Annotated[bool, typer.Option(help="run multiworld's own tests as well")] = True,
) -> None:
    """Install both wheel forms into fresh environments and run their tests; stock beside them, to see them fail."""
    found = prove_release(release, dist.absolute(), multiworld=multiworld)
    step(f"{found.version} is proven on Python {found.python}: {dist / release / 'tests.json'}")
