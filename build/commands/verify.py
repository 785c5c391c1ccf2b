"""`verify WHEEL`: check every claim of a wheel's provenance, and build the wheel again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from build import releases
from build.anypatch import patchset
from build.anypatch.plan import MOST_UNITS
from build.console import note, step
from build.pipeline import Own
from build.wheelhouse import reproduce, signer, trust
from build.wheelhouse import verify as claims


def verify(
    wheel: Annotated[Path, typer.Argument(help="the wheel, or the folder of a wheelhouse")],
    provenance: Annotated[Path | None, typer.Option(help="its provenance, default what lies beside it")] = None,
    key: signer.Key = None,
    identity: signer.Identity = "",
    issuer: signer.Issuer = signer.ISSUER,
    trusted_root: signer.TrustedRoot = None,
    source: Annotated[Path | None, typer.Option(help="checkout, tarball or folder with the release's sources")] = None,
    patches: Annotated[Path | None, typer.Option(help="your patches that it was made of, as for the build")] = None,
    from_branch: Annotated[str, typer.Option(help="PATH@REV: likewise your commits")] = "",
    include: Annotated[
        list[Path] | None, typer.Option(exists=True, file_okay=False, help="folder of headers, as for the build")
    ] = None,
    most_units: Annotated[int, typer.Option(help="as for the build")] = MOST_UNITS,
    extensions_rebuilt: Annotated[bool, typer.Option("--extensions-rebuilt", help="as for the build")] = False,
    rebuild: Annotated[bool, typer.Option(help="build the wheel again and compare")] = True,
) -> None:
    """Check every claim about WHEEL; the first that fails is named, and the exit status is 17.

    Of a wheelhouse: its list is signed, has not expired and is no older one, and every file is as it says.
    """
    own = Own(
        patches, from_branch, include=tuple(include or ()), most_units=most_units, extensions_rebuilt=extensions_rebuilt
    )
    believed = signer.named(key, identity, issuer, trusted_root)
    if wheel.is_dir():
        index, who = trust.trusted(str(wheel), believed)
        note(f"ok: signature: {who}")
        note(f"ok: serial number {index.predicate.serial}, believed until {index.predicate.expires:%Y-%m-%d}")
        step(f"{wheel}: {trust.check_files(wheel, index)} files are as its list says")
        return
    item = claims.subject(wheel.absolute(), provenance, believed)
    if own.of_user:
        item = replace(item, patches=patchset.chosen(releases.get(item.proven.release), patches, from_branch))
    step(f"checking the claims about {wheel.name}")
    number = 0
    for claim, found in claims.checked(item):
        note(f"ok: {claim}: {found}")
        number += 1
    rebuild = rebuild and item.said.predicate is not None
    if rebuild:
        for claim, found in reproduce.reproduced(item, source, own):
            note(f"ok: {claim}: {found}")
            number += 1
    left = "" if rebuild else "; it was NOT built again"
    step(f"{wheel.name}: {number} claims hold{left}")
