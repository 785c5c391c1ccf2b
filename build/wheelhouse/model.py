"""A wheel of the wheelhouse, as a frozen record, and what it says about itself, compared with its name."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from email.parser import BytesParser
from enum import Enum
from pathlib import Path

from packaging.metadata import parse_email
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.tags import parse_tag
from packaging.utils import (
    InvalidWheelFilename,
    NormalizedName,
    canonicalize_name,
    canonicalize_version,
    parse_wheel_filename,
)
from packaging.version import InvalidVersion, Version

from build.errors import ClaimError, WheelError, reading
from build.record import BuildRecord
from build.wheeltest.results import TestRecord


class Form(Enum):
    """The form of a wheel."""

    PATCHED = "patched wheel"
    OVERLAY = "overlay wheel"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Contents:
    """The statements of a wheel about itself.

    Attributes:
        metadata: the bytes of METADATA.
        tags: compressed tags of the file name, e.g. `cp311-cp311-manylinux_2_34_x86_64`.
        requires_python: version specifier, empty without one.
    """

    project: NormalizedName
    version: Version
    tags: str
    metadata: bytes
    requires_python: str
    summary: str


@dataclass(frozen=True, slots=True)
class Wheel:
    """One wheel of the wheelhouse.

    Attributes:
        sha256: digest of the file.
        size: bytes.
        yanked: why it must not be chosen any more; None if it may, empty if no reason is given.
        made: the record of its build; None for a wheel that was not built by this project's `build`.
        tests: results of tests of exactly these bytes, one per Python version.
        at: the address of the folder that serves it; empty if that is the wheelhouse's own.
    """

    path: Path
    contents: Contents
    sha256: str
    size: int
    yanked: str | None = None
    made: BuildRecord | None = None
    tests: tuple[TestRecord, ...] = ()
    at: str = ""

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def form(self) -> Form:
        if self.made is None:
            return Form.OTHER
        return Form.PATCHED if self.name == self.made.patched.name else Form.OVERLAY

    @property
    def release(self) -> str:
        """The release of PyTorch that it was built for; empty for a wheel that was not built here."""
        return self.made.provenance.release if self.made else ""

    @property
    def platform(self) -> str:
        return self.contents.tags.rpartition("-")[2]


_REMEDY = "build the wheel again, or take it out of the folder"


def read_contents(path: Path) -> Contents:
    """Return what the wheel at `path` says about itself.

    Raises:
        ClaimError: its file name, METADATA and WHEEL disagree, or are not valid.
        WheelError: it cannot be read.
    """
    try:
        project, version, _, _ = parse_wheel_filename(path.name)
    except (InvalidWheelFilename, InvalidVersion) as error:
        raise ClaimError(f"{path.name} is not the name of a wheel: {error}", remedy=_REMEDY) from None
    tags = "-".join(path.name.removesuffix(".whl").rsplit("-", 3)[1:])
    with reading(path.name, _REMEDY), zipfile.ZipFile(path) as archive:
        places = [name.rpartition("/")[0] for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        if len(places) != 1 or "/" in places[0]:
            raise WheelError(f"{path.name} has {len(places)} METADATA files, one expected", remedy=_REMEDY)
        info = places[0]
        metadata, wheel = archive.read(f"{info}/METADATA"), archive.read(f"{info}/WHEEL")
    _check_tags(path, tags, wheel)
    raw, _ = parse_email(metadata)
    name, number = canonicalize_name(raw.get("name", "")), canonicalize_version(raw.get("version", ""))
    if (name, number) != (project, canonicalize_version(version)):
        raise ClaimError(
            f"{path.name}: METADATA is that of {name} {raw.get('version', '')}", cause="it was renamed", remedy=_REMEDY
        )
    python = raw.get("requires_python", "")
    try:
        SpecifierSet(python)
    except InvalidSpecifier:
        raise ClaimError(f"{path.name}: Requires-Python: {python} is not a version specifier") from None
    return Contents(project, version, tags, metadata, python, raw.get("summary", ""))


def _check_tags(path: Path, tags: str, wheel: bytes) -> None:
    """Raise ClaimError unless WHEEL has the tags of the file name.

    Tools that give a wheel its platform tag after it was built may leave `linux_x86_64` in WHEEL: PyTorch's own do.
    """
    lines = BytesParser().parsebytes(wheel).get_all("Tag", [])
    inside = {tag for line in lines for tag in parse_tag(line.strip())}
    unnamed = {(tag.interpreter, tag.abi) for tag in inside if tag.platform.startswith("linux_")}
    named = {tag for tag in parse_tag(tags) if (tag.interpreter, tag.abi) not in unnamed}
    if named != {tag for tag in inside if (tag.interpreter, tag.abi) not in unnamed}:
        have = ", ".join(sorted(map(str, inside))) or "(none)"
        raise ClaimError(f"{path.name}: its WHEEL has the tags {have}", cause="it was renamed", remedy=_REMEDY)


def member(path: Path, suffix: str) -> bytes | None:
    """Return the member of a wheel's dist-info with that name there, e.g. `multiworld.json`; None without it."""
    with reading(path.name, _REMEDY), zipfile.ZipFile(path) as archive:
        found = [name for name in archive.namelist() if name.partition(".dist-info/")[2] == suffix]
        return archive.read(found[0]) if found else None
