"""The signed list of a wheelhouse: the digest of every file, when it was written, and until when it may be believed.

With it a reader sees a file that was exchanged, an older wheelhouse that is served again, and one that is kept back,
whoever serves it. The last serial number of each wheelhouse is kept in the user's state folder.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Annotated
from urllib.parse import unquote

import msgspec
import platformdirs
from packaging.utils import canonicalize_name, parse_wheel_filename

from build import seals
from build.errors import ClaimError, UsageError
from build.official.urls import shown
from build.paths import atomic_write, locked
from build.wheelhouse import attestation
from build.wheelhouse.attestation import SUFFIX
from build.wheelhouse.intoto import TYPE, Resource
from build.wheelhouse.signer import Signer

#: The list of all wheels, for programs; it also tells a wheelhouse from other folders.
LIST = "wheelhouse.json"
NAME = LIST + SUFFIX
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
    def projects(self) -> frozenset[str]:
        return frozenset(parse_wheel_filename(name)[0] for name in self.wheels)

    def check_pins(self, requirements: str) -> None:
        """Raise ClaimError if a project of the wheelhouse is pinned to a file that is not in it.

        Args:
            requirements: with hashes, as `uv pip compile --generate-hashes` writes them.
        """
        known = set(self.wheels.values())
        for line in requirements.replace("\\\n", " ").splitlines():
            name, hashes = re.match(r"[\w.-]+", line), re.findall(r"--hash=\w+:(\w+)", line)
            if name and canonicalize_name(name[0]) in self.projects and not known.issuperset(hashes or [""]):
                raise ClaimError(
                    f"{line.split(' --hash')[0].strip()} would come from another index than the wheelhouse",
                    cause=f"the wheelhouse serves {canonicalize_name(name[0])}, and does not have this file",
                    remedy="name a version that the wheelhouse has",
                )


def uv_options(wheelhouse: str, others: Sequence[str]) -> list[str]:
    """Return options of `uv pip`, by which what the wheelhouse serves comes from no other index."""
    urls = [wheelhouse, *others]
    more = [word for url in urls[:-1] for word in ("--index", url)]
    return [*more, "--default-index", urls[-1], "--index-strategy", "first-index"]


def life(days: int) -> Life:
    """Return a life that begins now, or at SOURCE_DATE_EPOCH, so that two runs can write the same bytes."""
    text = os.environ.get("SOURCE_DATE_EPOCH") or str(int(time.time()))
    try:
        begin = datetime.fromtimestamp(int(text), timezone.utc)
        return Life(int(text), begin + timedelta(days=days))
    except (ValueError, OverflowError, OSError) as error:
        raise UsageError(
            f"no wheelhouse can live {days} days from SOURCE_DATE_EPOCH={text}: {error}",
            remedy="correct --days, or unset that variable",
        ) from None


def make(digests: Mapping[str, str], lives: Life) -> bytes:
    """Return the statement about files, by path below the wheelhouse or by address."""
    subject = tuple(Resource(name, digest={"sha256": digest}) for name, digest in sorted(digests.items()))
    whole = Index(TYPE, subject, PREDICATE, lives)
    return msgspec.json.format(msgspec.json.encode(whole), indent=1) + b"\n"


def trusted(place: str, signer: Signer) -> tuple[Index, str]:
    """Return the list of a wheelhouse, and who vouches for it.

    Args:
        place: its folder or address, also that of its index (`…/simple/`).
        signer: must have signed it.

    Raises:
        ClaimError: it is not signed by the signer, has expired, or is older than one that was seen there before.
    """
    from build.official import pip_session

    if not place.startswith(("http://", "https://")):
        place = Path(place).resolve().as_uri()
    place = place.rstrip("/").removesuffix("/simple")
    answer = pip_session.fetched(f"{place}/{NAME}")
    if answer is None:
        raise ClaimError(f"{shown(place)} has no {NAME}, so nobody vouches for its files", remedy=_REMEDY)
    signed = attestation.decode(answer.content, NAME)
    who = signer.vouches(signed)
    try:
        index = msgspec.json.decode(signed.statement, type=Index)
    except msgspec.DecodeError as error:
        raise ClaimError(f"{shown(place)}: {NAME} is not the list of a wheelhouse: {error}", remedy=_REMEDY) from None
    if index.predicate_type != PREDICATE:
        raise ClaimError(f"{shown(place)}: {NAME} is a statement about something else", remedy=_REMEDY)
    if index.predicate.expires < datetime.now(timezone.utc):
        raise ClaimError(
            f"{shown(place)}: its list has expired, on {index.predicate.expires:%Y-%m-%d}",
            cause="it was not published again in time, newer ones are kept back, or the clock here is wrong",
            remedy="have it published again, `nox -s wheelhouse`; do not install from it before",
        )
    _remember(f"{signer.name or 'anybody'}: {shown(place)}", index.predicate.serial)
    return index, who


def _remember(name: str, serial: int) -> None:
    """Keep the serial number of a wheelhouse; raise ClaimError if a larger one was seen."""
    path = platformdirs.user_state_path("multiworld") / "wheelhouses.json"
    with locked(path, f"the list {path}"):
        try:
            seen = msgspec.json.decode(path.read_bytes(), type=dict[str, int]) if path.exists() else {}
        except msgspec.DecodeError as error:
            raise ClaimError(f"{path} is damaged: {error}", remedy="remove it; what it remembers is lost") from None
        if serial < seen.get(name, 0):
            raise ClaimError(
                f"{name.partition(': ')[2]} is older than it was: serial number {serial}, after {seen[name]}",
                cause="an old wheelhouse is served again, or the clock of its publisher was wrong",
                remedy=f"{_REMEDY}; if it is right, remove its entry from {path}",
            )
        if serial != seen.get(name):
            with atomic_write(path) as part:
                part.write_bytes(msgspec.json.encode(seen | {name: serial}))


def check_files(folder: Path, index: Index) -> int:
    """Compare all files of a wheelhouse with its list; return how many there are.

    Raises:
        ClaimError: a file is missing, is not listed, or has other content; each is named.
    """
    want = {item.name: item.digest.get("sha256", "") for item in index.subject if ":" not in item.name}
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
