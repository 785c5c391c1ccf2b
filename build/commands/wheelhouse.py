"""`wheelhouse [FOLDER ...]`: publish built wheels as a folder that pip and uv install from."""

from __future__ import annotations

import os
import re
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from build import paths
from build.console import counted, note, step
from build.errors import UsageError
from build.wheelhouse import attestation, signer, statement, trust
from build.wheelhouse.attestation import PublicKey, private_key
from build.wheelhouse.gather import gathered
from build.wheelhouse.mirror import fetch
from build.wheelhouse.publish import DAYS, Request, publish

#: Names the file with the signing key where `--key` does not.
KEY = "MULTIWORLD_SIGNING_KEY"


def wheelhouse(
    folders: Annotated[
        list[Path] | None, typer.Argument(help="more folders that hold wheels, besides those of --dist")
    ] = None,
    dist: Annotated[Path, typer.Option(help="folder with the results of `build` and `test`")] = paths.DIST,
    out: Annotated[Path | None, typer.Option(help="the wheelhouse, default dist/wheelhouse")] = None,
    url: Annotated[str, typer.Option(help="where it will be served, e.g. https://example.org/wheels")] = "",
    key: Annotated[Path | None, typer.Option(help=f"ed25519 private key (PEM), default ${KEY}; else unsigned")] = None,
    sigstore: Annotated[bool, typer.Option("--sigstore", help="sign as this CI job, by sigstore")] = False,
    builder: Annotated[str, typer.Option(help="URI of who built the wheels, default this CI job")] = "",
    days: Annotated[int, typer.Option(min=1, help="for how long readers may believe it")] = DAYS,
    mirror: Annotated[bool, typer.Option("--mirror", help="with all dependencies, for hosts without network")] = False,
    assets: Annotated[str, typer.Option(help="where wheels of more than 100 MB are served instead")] = "",
) -> None:
    """Gather dist/*/ and FOLDERs into one folder with index, provenance and front page, and replace it in one step."""
    dist = dist.absolute()
    into = (out or dist / "wheelhouse").absolute()
    built = [path.parent for path in dist.glob("*/*.whl") if not path.is_relative_to(into)]
    fetched = dist / "mirror"
    every = (*sorted({*built} - {fetched}), *(path.absolute() for path in folders or ()))
    if mirror:
        with gathered(every) as wheels:
            fetch(wheels, fetched)
        every = (*every, fetched)
    life = trust.life(days)
    request = Request(every, into, _address("--url", url), builder=builder or _job(), life=life)
    request = replace(request, assets=_address("--assets", assets))
    if sigstore:
        with signer.keyless() as attest:
            _publish(replace(request, attest=attest, signed_by="sigstore"))
    else:
        _publish(_with_key(request, key))


def _address(option: str, text: str) -> str:
    """Return an address of the web; raise UsageError for what a browser or pip would not load from."""
    if text and not re.fullmatch(r"https?://[^\s/?#'\"<>]+(/[^\s?#'\"<>]*)?", text):
        raise UsageError(f"{option} {text!r} is not an address", remedy="name one as https://example.org/wheels")
    return text


def _job() -> str:
    """Return the URI of this CI job's workflow, as GitHub's own attestations name it."""
    server, workflow = os.environ.get("GITHUB_SERVER_URL"), os.environ.get("GITHUB_WORKFLOW_REF")
    return f"{server}/{workflow}" if server and workflow else statement.BUILDER


def _publish(request: Request) -> None:
    wheels = publish(request)
    for form, number in Counter(item.form.value for item in wheels).items():
        note(f"{form}: {number}")
    if others := sum(item.made is None for item in wheels):
        note(f"without the record of a build: {counted(others, 'wheel')}, whose provenance only says who publishes it")
    for item in wheels:
        if item.made is not None and not item.tests:
            note(f"{item.name}: no test result for these bytes")
    step(f"{len(wheels)} wheels: {request.out}")
    note(f"provenance signed by {request.signed_by or 'NOBODY: --key names a key'}")


def _with_key(request: Request, place: Path | None) -> Request:
    """Return the request with the key at `place`, else the one that the environment names, if any."""
    named = os.environ.get(KEY)
    if place is None and not named:
        return request
    key = private_key(place or Path(named or ""))
    attest, public = partial(attestation.sign, key=key), PublicKey(key.public_key())
    return replace(request, attest=attest, signed_by=f"key {public.keyid}", public=public.pem)
