"""`verify WHEEL`: check every claim of a wheel's provenance, and build the wheel again."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from build.console import note, step
from build.wheelhouse import reproduce, signing
from build.wheelhouse import verify as claims


def verify(
    wheel: Annotated[Path, typer.Argument(help="the wheel")],
    provenance: Annotated[Path | None, typer.Option(help="its provenance, default what lies beside it")] = None,
    key: Annotated[Path | None, typer.Option(help="ed25519 public key (PEM) that must have signed it")] = None,
    source: Annotated[Path | None, typer.Option(help="checkout, tarball or folder with the release's sources")] = None,
    rebuild: Annotated[bool, typer.Option(help="build the wheel again and compare")] = True,
) -> None:
    """Check every claim about WHEEL; the first that fails is named, and the exit status is 17."""
    item = claims.subject(wheel.absolute(), provenance, signing.public_key(key) if key else None)
    step(f"checking the claims about {wheel.name}")
    number = 0
    for claim, found in claims.checked(item):
        note(f"ok: {claim}: {found}")
        number += 1
    if rebuild:
        for claim, found in reproduce.reproduced(item, source):
            note(f"ok: {claim}: {found}")
            number += 1
    left = "" if rebuild else "; it was NOT built again"
    step(f"{wheel.name}: {number} claims hold{left}")
