"""Write the wheelhouse: wheels, what lies beside each, index, list, front page; all of it appears in one step."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from build import record
from build.errors import UsageError
from build.paths import built_beside, locked
from build.wheelhouse import attestation, page, simple, statement, trust
from build.wheelhouse.attestation import Attestation, Publisher
from build.wheelhouse.gather import gathered
from build.wheelhouse.model import Wheel

PUBLIC_KEY = "public-key.pem"
#: Wheels of more bytes are served from elsewhere, if there is such a place.
LARGE = 100_000_000
#: For how long a wheelhouse is believed.
DAYS = 90
_MODE = 0o644


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
        assets: address of the folder that serves wheels of more than `LARGE` bytes; empty: they are in the wheelhouse.
        life: for how long it may be believed.
    """

    folders: tuple[Path, ...]
    out: Path
    url: str = ""
    attest: Callable[[bytes], Attestation] = Attestation
    signed_by: str = ""
    public: str = ""
    builder: str = statement.BUILDER
    assets: str = ""
    life: trust.Life = field(default_factory=lambda: trust.life(DAYS))


def publish(request: Request) -> tuple[Wheel, ...]:
    """Gather the wheels, check them, and replace the wheelhouse; return what is in it.

    Raises:
        ClaimError: something disagrees with a claim; the wheelhouse is as it was.
        UsageError: there is nothing to publish, or `out` is a folder of something else.
        BusyError: a build, or another run of this, did not end in time.
    """
    _check_out(request.out)
    with locked(request.out, f"the wheelhouse {request.out}"), gathered(request.folders) as found:
        assets = request.assets.rstrip("/")
        wheels = tuple(replace(item, at=assets if item.size > LARGE else "") for item in found)
        _write(request, wheels)
    return wheels


def _write(request: Request, wheels: Sequence[Wheel]) -> None:
    """Write everything beside the wheelhouse, readable by every server, and put it in its place."""
    with built_beside(request.out) as part:
        (part / "files").mkdir()
        digests = {simple.url(item, "") if item.at else f"files/{item.name}": item.sha256 for item in wheels}
        for item in wheels:
            if not item.at:
                _place(item.path.resolve(), part / "files" / item.name)
        for name, data in _documents(request, wheels):
            path = part / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
            digests[name] = hashlib.sha256(data).hexdigest()
        (part / trust.NAME).write_bytes(attestation.encode(request.attest(trust.make(digests, request.life))))
        for path in part.rglob("*"):
            if path.is_dir() or path.suffix != ".whl":  # a link to a wheel may be somebody else's
                path.chmod(0o755 if path.is_dir() else _MODE)


def _check_out(out: Path) -> None:
    """Refuse to replace a folder that is no wheelhouse."""
    if out.exists() and not (out / trust.LIST).is_file() and (not out.is_dir() or any(out.iterdir())):
        what = f"--out {out} is not a wheelhouse, and is not replaced"
        raise UsageError(what, remedy=f"name a new folder, or an earlier wheelhouse, with its {trust.LIST}")


def _place(source: Path, target: Path) -> None:
    """Link a wheel, or copy it where the file system cannot, or where a server could not read it."""
    try:
        if stat.S_IMODE(source.stat().st_mode) != _MODE:
            raise PermissionError
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
        target.chmod(_MODE)


def _documents(request: Request, wheels: Sequence[Wheel]) -> Iterator[tuple[str, bytes]]:
    """Yield path and content of everything but the wheels."""
    for item in wheels:
        yield f"files/{item.name}{trust.METADATA}", item.contents.metadata
        yield from ((f"files/{item.name}{suffix}", data) for suffix, data in _provenance(item, request))
    yield from simple.files(wheels, request.url).items()
    if request.public:
        yield PUBLIC_KEY, request.public.encode()
    # Who signs is empty for nobody.
    listing = {"signed_by": request.signed_by, "life": request.life, "wheels": list(map(_listed, wheels)), "schema": 1}
    yield trust.LIST, record.encode(listing)
    yield "index.html", page.page(wheels, request.signed_by, request.url).encode()


def _provenance(item: Wheel, request: Request) -> Iterator[tuple[str, bytes]]:
    """Yield what lies beside a wheel about its build, or about its publication."""
    wheel = record.Artifact(item.name, item.sha256, item.size)
    said = record.encode(statement.make(wheel, item.made, request.builder))
    signed = request.attest(said)
    yield attestation.STATEMENT, said
    yield attestation.SUFFIX, attestation.encode(signed)
    if signed.publisher is Publisher.KEY:
        yield attestation.ENVELOPE, attestation.envelope(signed)
    if signed.publisher is Publisher.SIGSTORE:
        yield attestation.BUNDLE, attestation.bundle(signed)


def _listed(item: Wheel) -> dict[str, object]:
    return {
        "file": simple.url(item, "") if item.at else f"files/{item.name}",
        "project": item.contents.project,
        "version": str(item.contents.version),
        "sha256": item.sha256,
        "size": item.size,
        "requires_python": item.contents.requires_python,
        "form": item.form.value,
        "release": item.release,
        "pythons_proven": [result.python for result in item.tests if result.proven],
        "yanked": item.yanked,
    }
