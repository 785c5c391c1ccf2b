"""The signed list of a wheelhouse: the digest of every file, when it was written, and until when it may be believed.

With it a reader sees a file that was exchanged, an older wheelhouse that is served again, and one that is kept back,
whoever serves it. The last serial number of each wheelhouse is kept in the user's state folder.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Annotated
from urllib.parse import quote, unquote

import msgspec
import platformdirs
from packaging.utils import parse_wheel_filename

from build import record, seals
from build.errors import ClaimError, UsageError
from build.official.urls import shown
from build.paths import atomic_write, locked
from build.wheelhouse import attestation
from build.wheelhouse.attestation import SUFFIX
from build.wheelhouse.signer import Signer
from build.wheelhouse.statement import TYPE, Resource, Subjects

#: The list of all wheels, for programs; it also tells a wheelhouse from other folders.
LIST = "wheelhouse.json"
NAME = LIST + SUFFIX
#: Behind the name of a wheel: its METADATA.
METADATA = ".metadata"
PREDICATE = "urn:multiworld:wheelhouse:1"
_REMEDY = "do not install from it; ask who publishes it"


class Life(msgspec.Struct, frozen=True):
    """The time for which a wheelhouse may be believed; `serial` is the second (Unix time) in which it was written."""

    serial: int
    expires: Annotated[datetime, msgspec.Meta(tz=True)]


class Index(msgspec.Struct, frozen=True, rename="camel"):
    """An in-toto statement about all files of a wheelhouse; a wheel that is served elsewhere has its address."""

    type_: str = msgspec.field(name="_type")
    subject: tuple[Resource, ...]
    predicate_type: str
    predicate: Life

    @property
    def wheels(self) -> dict[str, str]:
        """The SHA-256 of each wheel, by file name."""
        names = ((unquote(item.name).rpartition("/")[2], item.digest.get("sha256", "")) for item in self.subject)
        return {name: digest for name, digest in names if name.endswith(".whl")}

    @property
    def digests(self) -> dict[str, str]:
        return {item.name: item.digest.get("sha256", "") for item in self.subject}

    @property
    def projects(self) -> frozenset[str]:
        return frozenset(parse_wheel_filename(name)[0] for name in self.wheels)

    def check(self, place: str, signer: Signer, pinned: Mapping[str, Collection[str]]) -> None:
        """Check what a resolver has chosen, as far as the wheelhouse has projects of these names.

        Args:
            place: the address of the wheelhouse, or of its index.
            signer: must have signed the provenance of each wheel, too.
            pinned: the SHA-256 of the files of each project.

        Raises:
            ClaimError: a file comes from elsewhere, what the resolver has read is not as the list says, or the
                provenance of a wheel is not the signer's.
        """
        known = {digest: name for name, digest in self.wheels.items()}
        for project in sorted(self.projects & pinned.keys()):
            for digest in pinned[project]:
                if digest not in known:
                    what = f"{project} would come from another index than the wheelhouse: SHA-256 {digest}"
                    raise ClaimError(what, remedy="name a version that the wheelhouse has")
                pages = [f"simple/{project}/index.{kind}" for kind in ("html", "json")]
                self._check_wheel(place, signer, known[digest], pages)

    def _check_wheel(self, place: str, signer: Signer, wheel: str, pages: Sequence[str]) -> None:
        names = (*pages, *(f"files/{wheel}{end}" for end in (METADATA, SUFFIX)))
        told = {name: _fetched(place, name) for name in names}
        for name, data in told.items():
            if hashlib.sha256(data).hexdigest() != self.digests.get(name):
                raise ClaimError(f"{shown(place)}: {name} is not as its list says", remedy=_REMEDY)
        signed = attestation.decode(told[f"files/{wheel}{SUFFIX}"], f"{wheel}{SUFFIX}")
        signer.vouches(signed)
        said = msgspec.json.decode(signed.statement, type=Subjects).subject
        if [item.digest.get("sha256") for item in said] != [self.wheels[wheel]]:
            raise ClaimError(f"{shown(place)}: {wheel}{SUFFIX} is about another wheel", remedy=_REMEDY)


def life(days: int) -> Life:
    """Return a life that begins now, or at SOURCE_DATE_EPOCH, so that two runs can write the same bytes."""
    text = os.environ.get("SOURCE_DATE_EPOCH") or str(int(time.time()))
    try:
        begin = datetime.fromtimestamp(int(text), timezone.utc)
        return Life(int(text), begin + timedelta(days=days))
    except (ValueError, OverflowError, OSError) as error:
        what = f"no wheelhouse can live {days} days from SOURCE_DATE_EPOCH={text}: {error}"
        raise UsageError(what, remedy="correct --days, or unset that variable") from None


def make(digests: Mapping[str, str], lives: Life) -> bytes:
    """Return the statement about files, by path below the wheelhouse or by address."""
    subject = tuple(Resource(name, digest={"sha256": digest}) for name, digest in sorted(digests.items()))
    return record.encode(Index(TYPE, subject, PREDICATE, lives))


def trusted(place: str, signer: Signer) -> tuple[Index, str]:
    """Return the list of a wheelhouse, and who vouches for it.

    Args:
        place: its folder or address, also that of its index (`…/simple/`).
        signer: must have signed it.

    Raises:
        ClaimError: it is not signed by the signer, has expired, or is older than one that was seen there before.
    """
    place = _root(place)
    signed = attestation.decode(_fetched(place, NAME), NAME)
    who = signer.vouches(signed)
    try:
        index = msgspec.json.decode(signed.statement, type=Index)
    except msgspec.DecodeError as error:
        raise ClaimError(f"{shown(place)}: {NAME} is not the list of a wheelhouse: {error}", remedy=_REMEDY) from None
    if index.predicate_type != PREDICATE:
        raise ClaimError(f"{shown(place)}: {NAME} is a statement about something else", remedy=_REMEDY)
    if index.predicate.expires < datetime.now(timezone.utc):
        what = f"{shown(place)}: its list has expired, on {index.predicate.expires:%Y-%m-%d}"
        raise ClaimError(what, remedy="have it published again, `nox -s wheelhouse`; do not install from it before")
    _remember(f"{signer.name or 'anybody'}: {shown(place)}", index.predicate.serial)
    return index, who


def _root(place: str) -> str:
    """Return the address of a wheelhouse; `place` may be a folder, or its index."""
    if "://" not in place:
        place = Path(place).resolve().as_uri()
    return place.rstrip("/").removesuffix("/simple")


def _fetched(place: str, name: str) -> bytes:
    from build.official import pip_session

    answer = pip_session.fetched(f"{_root(place)}/{quote(name)}")
    if answer is None:
        raise ClaimError(f"{shown(place)} has no {name}, so nobody vouches for its files", remedy=_REMEDY)
    return bytes(answer.content)


def _remember(name: str, serial: int) -> None:
    """Keep the serial number of a wheelhouse; raise ClaimError if a larger one was seen."""
    path = platformdirs.user_state_path("multiworld") / "wheelhouses.json"
    with locked(path, f"the list {path}"):
        try:
            seen = msgspec.json.decode(path.read_bytes(), type=dict[str, int]) if path.exists() else {}
        except msgspec.DecodeError as error:
            raise ClaimError(f"{path} is damaged: {error}", remedy="remove it; what it remembers is lost") from None
        if serial < seen.get(name, 0):
            what = f"{name.partition(': ')[2]} is older than it was: serial number {serial}, after {seen[name]}"
            raise ClaimError(what, remedy=f"{_REMEDY}; if it is right, remove its entry from {path}")
        if serial != seen.get(name):
            with atomic_write(path) as part:
                part.write_bytes(msgspec.json.encode(seen | {name: serial}))


def check_files(folder: Path, index: Index) -> int:
    """Compare all files of a wheelhouse with its list; return how many there are.

    Raises:
        ClaimError: a file is missing, is not listed, or has other content; each is named.
    """
    want = {name: digest for name, digest in index.digests.items() if ":" not in name}
    there = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if not path.is_dir()}
    there.pop(NAME, None)
    wrong = [f"{name}: not listed" for name in there.keys() - want.keys()]
    wrong += [f"{name}: missing" for name in want.keys() - there.keys()]
    wrong += [f"{name}: other content" for name in want.keys() & there.keys() if _digest(there[name]) != want[name]]
    if wrong:
        raise ClaimError(f"{folder} is not as its list says:\n" + "\n".join(sorted(wrong)), remedy=_REMEDY)
    return len(want)


def _digest(path: Path) -> str:
    return seals.sha256_of(path) if path.is_file() and not path.is_symlink() else ""
