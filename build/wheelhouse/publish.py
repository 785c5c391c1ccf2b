"""Write the wheelhouse: wheels, what lies beside each, index, list, front page; all of it appears in one step."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from build import record
from build.errors import UsageError
from build.paths import built_beside, locked
from build.wheelhouse import attestation, page, simple, statement
from build.wheelhouse.attestation import Attestation, Publisher
from build.wheelhouse.gather import gathered
from build.wheelhouse.model import Wheel

#: The list of all wheels, for programs; it also tells a wheelhouse from other folders.
LIST = "wheelhouse.json"
PUBLIC_KEY = "public-key.pem"


@dataclass(frozen=True, slots=True)
class Request:
    """Wheels to publish, and how they are signed.

    Attributes:
        folders: folders that hold wheels.
        out: the wheelhouse; replaced as a whole.
        url: where it will be served, empty if that is not known.
        attest: signs a statement; the default leaves it unsigned.
        signed_by: who signs, for people; empty for nobody.
        public: the public key of who signs, PEM, if it is a key.
        builder: URI of who built the wheels.
    """

    folders: tuple[Path, ...]
    out: Path
    url: str = ""
    attest: Callable[[bytes], Attestation] = Attestation
    signed_by: str = ""
    public: str = ""
    builder: str = statement.BUILDER


class Listed(msgspec.Struct, frozen=True):
    """One wheel in the list."""

    file: str
    project: str
    version: str
    sha256: str
    size: int
    requires_python: str
    form: str
    release: str
    pythons_proven: tuple[str, ...]
    yanked: str | None


class Listing(msgspec.Struct, frozen=True):
    """The whole of `wheelhouse.json`; `signed_by` says who signs, empty for nobody."""

    signed_by: str
    wheels: tuple[Listed, ...]
    schema: int = 1


def publish(request: Request) -> tuple[Wheel, ...]:
    """Gather the wheels, check them, and replace the wheelhouse; return what is in it.

    Raises:
        ClaimError: something disagrees with a claim; the wheelhouse is as it was.
        UsageError: there is nothing to publish, or `out` is a folder of something else.
        BusyError: a build, or another run of this, did not end in time.
    """
    _check_out(request.out)
    with locked(request.out, f"the wheelhouse {request.out}"), gathered(request.folders) as wheels:
        _write(request, wheels)
    return wheels


def _write(request: Request, wheels: Sequence[Wheel]) -> None:
    """Write everything beside the wheelhouse, and put it in its place."""
    with built_beside(request.out) as part:
        for item in wheels:
            _place(item.path, part / "files" / item.name)
        for name, data in _documents(request, wheels):
            path = part / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)


def _check_out(out: Path) -> None:
    """Refuse to replace a folder that is no wheelhouse."""
    if out.exists() and not (out / LIST).is_file() and (not out.is_dir() or any(out.iterdir())):
        raise UsageError(
            f"--out {out} is not a wheelhouse, and is not replaced",
            cause=f"it has no {LIST}, but other content",
            remedy="name a new folder, or an earlier wheelhouse",
        )


def _place(source: Path, target: Path) -> None:
    """Link a wheel, or copy it where the file system cannot."""
    target.parent.mkdir(exist_ok=True)
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _documents(request: Request, wheels: Sequence[Wheel]) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of everything but the wheels."""
    for item in wheels:
        yield f"files/{item.name}{simple.METADATA}", item.contents.metadata
        yield from ((f"files/{item.name}{suffix}", data) for suffix, data in _provenance(item, request))
    yield from simple.files(wheels, request.url).items()
    if request.public:
        yield PUBLIC_KEY, request.public.encode()
    listing = Listing(request.signed_by, tuple(map(_listed, wheels)))
    yield LIST, msgspec.json.format(msgspec.json.encode(listing), indent=1) + b"\n"
    yield "index.html", page.page(wheels, request.signed_by, request.url).encode()


def _provenance(item: Wheel, request: Request) -> Iterator[tuple[str, bytes]]:
    """Yield what lies beside a wheel about its build, nothing for one without a record."""
    if item.made is None:
        return
    said = statement.encode(
        statement.make(record.Artifact(item.name, item.sha256, item.size), item.made, request.builder)
    )
    signed = request.attest(said)
    yield attestation.STATEMENT, said
    yield attestation.SUFFIX, attestation.encode(signed)
    if signed.publisher is Publisher.KEY:
        yield attestation.ENVELOPE, attestation.envelope(signed)


def _listed(item: Wheel) -> Listed:
    return Listed(
        file=f"files/{item.name}",
        project=item.contents.project,
        version=str(item.contents.version),
        sha256=item.sha256,
        size=item.size,
        requires_python=item.contents.requires_python,
        form=item.form.value,
        release=item.made.provenance.release if item.made else "",
        pythons_proven=tuple(result.python for result in item.tests if result.proven),
        yanked=item.yanked,
    )
