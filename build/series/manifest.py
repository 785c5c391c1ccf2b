"""The manifest of a series (`patches/<series>/manifest.toml`), validated on load, and the patches that it names."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from build import paths
from build.errors import PatchError, ReleaseDataError, UsageError
from build.releases import Frozen, Id, Text
from build.series.model import PatchFile
from build.series.parameters import Parameter
from build.series.parameters import problems as parameter_problems
from build.series.patchfile import read

_Name: TypeAlias = Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9-]*$")]
#: The reports of a port, in the folder of a release's patches.
MARKDOWN, JSON = REPORTS = ("PORT.md", "port.json")


class Verified(Enum):
    """The state of a release's patches: each step includes the ones before it."""

    NONE = "none"
    PORTED = "ported"
    COMPILED = "compiled"
    PROBED = "probed"


class HeaderChange(Frozen, frozen=True):
    """A header that the patch changes, and why that does not affect units outside an overlay."""

    path: str
    reason: Text


class NotApplicable(Frozen, frozen=True):
    """A release inside a patch's range that does not need it, and why."""

    id: str
    reason: Text


class PatchEntry(Frozen, frozen=True):
    """One patch of the series, whatever its releases.

    Attributes:
        id: its name in this manifest; `slug` its name in file names.
        reason: the defect that it corrects.
        applies: the releases it applies to, as a version specifier.
        upstream: issue or pull request, or how it came upstream.
        applied_upstream: the first release that has the change, empty if none.
        header_changes: the headers it changes.
    """

    id: _Name
    slug: _Name
    reason: Text
    applies: str
    upstream: str = ""
    applied_upstream: str = ""
    header_changes: tuple[HeaderChange, ...] = ()

    def covers(self, release: str) -> bool:
        return SpecifierSet(self.applies).contains(Version(release), prereleases=True)


class ReleaseEntry(Frozen, frozen=True, kw_only=True):
    """The series in one release.

    Attributes:
        base_commit: commit of the release that the patches apply to.
        derived_from: the release its patches were ported from, empty if they were written for it.
        patches: ids in order; the n-th is the file `NNNN-<slug>.patch`.
        not_applicable: patches whose range contains the release, but which it does not need.
        missing: patches still to be made; lint refuses a release that has any.
        verified: see `Verified`.
        note: for people.
    """

    base_commit: Id
    derived_from: str = ""
    patches: tuple[str, ...]
    not_applicable: tuple[NotApplicable, ...] = ()
    missing: tuple[str, ...] = ()
    verified: Verified = Verified.NONE
    note: str = ""


class SeriesEntry(Frozen, frozen=True):
    """The series itself; from release `legacy_from` on, it is only for users who want the old behaviour."""

    name: str
    purpose: str
    legacy_from: str = ""
    legacy_reason: str = ""


class Manifest(Frozen, frozen=True):
    """A whole manifest; `parameter` are the build variables that its patches leave open, if any."""

    series: SeriesEntry
    parameter: tuple[Parameter, ...] = ()
    patch: tuple[PatchEntry, ...] = ()
    release: dict[str, ReleaseEntry] = msgspec.field(default_factory=dict)

    def entry(self, patch_id: str) -> PatchEntry:
        """Return the patch called `patch_id`; `parse` has checked that every id used is known."""
        return next(entry for entry in self.patch if entry.id == patch_id)

    def file_names(self, release: str) -> tuple[str, ...]:
        ids = self.release[release].patches
        return tuple(f"{n:04d}-{self.entry(name).slug}.patch" for n, name in enumerate(ids, 1))


def parse(text: bytes, origin: str) -> Manifest:
    """Validate the bytes of a manifest.

    Raises:
        ReleaseDataError: not TOML, unknown keys, or entries that contradict each other.
    """
    try:
        manifest = msgspec.toml.decode(text, type=Manifest)
    except msgspec.DecodeError as error:
        raise ReleaseDataError(f"{origin} is not valid: {error}", remedy="correct the entry it names") from None
    if problems := list(_problems(manifest)):
        raise ReleaseDataError(f"{origin}: " + "; ".join(problems), remedy="correct the manifest")
    return manifest


def load(folder: Path) -> Manifest:
    """Read the manifest of the series in `folder`; ReleaseDataError if it does not exist or is not valid."""
    path = folder / "manifest.toml"
    if not path.is_file():
        raise ReleaseDataError(f"series {folder.name!r} has no manifest", cause=f"{path} does not exist")
    return parse(path.read_bytes(), f"{folder.name}/manifest.toml")


def folders(root: Path | None = None) -> dict[str, Path]:
    root = root or paths.PATCHES
    return {path.parent.name: path.parent for path in sorted(root.glob("*/manifest.toml"))}


def folder(name: str, root: Path | None = None) -> Path:
    """Return the folder of the series `name`; UsageError, with the known series, if it does not exist."""
    known = folders(root)
    if name not in known:
        raise UsageError(f"there is no series {name!r}", remedy="use one of: " + ", ".join(known))
    return known[name]


def patches_of(release: str, series: Sequence[str], root: Path | None = None) -> tuple[PatchFile, ...]:
    """Read the patches of `release`, one series after the other; `root` is the folder of all series.

    Raises:
        PatchError: no series is ported to the release, one does not have all its patches, or a patch is malformed.
    """
    if not series:
        remedy = f"port one: python3 noxfile.py -s regenerate-patch -- {release}"
        raise PatchError(f"no series of patches is ported to PyTorch {release} yet", remedy=remedy)
    found: list[PatchFile] = []
    for name in series:
        remedy = f"nox -s regenerate-patch -- {release} --series {name}"
        series_folder = folder(name, root)
        manifest = load(series_folder)
        if release not in manifest.release:
            raise PatchError(f"series {name!r} has no patches for {release}", remedy=remedy)
        if missing := manifest.release[release].missing:
            cause = f"the manifest lists as missing: {', '.join(missing)}"
            raise PatchError(f"series {name!r} is not complete for {release}", cause=cause, remedy=remedy)
        found += [read(path) for path in patch_paths(series_folder, manifest, release).values()]
    return tuple(found)


def patch_paths(series: Path, manifest: Manifest, release: str) -> dict[str, Path]:
    """Return the patch files of a release by patch id, in order.

    Raises:
        ReleaseDataError: one of them does not exist; the message has the nearest name that exists.
    """
    ids = manifest.release[release].patches
    found = {name: series / release / file for name, file in zip(ids, manifest.file_names(release), strict=True)}
    for name, path in found.items():
        if not path.is_file():
            names = sorted(item.name for item in path.parent.glob("*.patch"))
            near = next(iter(difflib.get_close_matches(path.name, names, 1, 0.0)), "")
            slug, where = manifest.entry(name).slug, f"{series.name}/manifest.toml"
            what = f"{where}: patch {name!r} has the slug {slug!r}, but there is no file {release}/{path.name}"
            cause = f"the nearest file is {release}/{near}" if near else f"{path.parent} has no patches"
            raise ReleaseDataError(what, cause=cause, remedy=f"correct {series / 'manifest.toml'}, or rename the file")
    return found


def _problems(manifest: Manifest) -> Iterator[str]:
    """Yield what contradicts itself, as sentences."""
    yield from parameter_problems(manifest.parameter)
    for field in ("id", "slug"):
        names = [getattr(entry, field) for entry in manifest.patch]
        yield from (f"{field} {name!r} is used twice" for name in sorted({n for n in names if names.count(n) > 1}))
    known = {entry.id for entry in manifest.patch}
    for release, entry in manifest.release.items():
        used = [*entry.patches, *entry.missing, *(item.id for item in entry.not_applicable)]
        yield from (f"release {release} names an unknown patch {name!r}" for name in used if name not in known)
        yield from (f"release {release} lists {n!r} twice" for n in sorted({n for n in used if used.count(n) > 1}))
    try:
        for patch in manifest.patch:
            SpecifierSet(patch.applies)
            _ = patch.applied_upstream and Version(patch.applied_upstream)
        for release in manifest.release:
            Version(release)
    except (InvalidSpecifier, InvalidVersion) as error:
        yield str(error)
