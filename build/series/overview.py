"""Patch x release: which patch a release needs, has, or can do without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import msgspec
from packaging.version import Version

from build.series import manifest as manifests
from build.series.manifest import Manifest, PatchEntry, ReleaseEntry, Verified
from build.series.patchfile import read


class PatchStatus(Enum):
    """How a patch stands in a release: symbol, word, explanation."""

    NEEDED = ("●", "needed", "there, and proven to work on this release's wheel")
    UNVERIFIED = ("◐", "unverified", "there, but not yet proven on this release's wheel")
    UPSTREAM = ("↑", "upstream since", "the release has the change itself")
    MISSING = ("✗", "missing", "the release needs it, and it is not there")
    NOT_APPLICABLE = ("·", "not applicable", "the release does not need it")

    @property
    def symbol(self) -> str:
        """One character."""
        return self.value[0]

    @property
    def word(self) -> str:
        """A word or two."""
        return self.value[1]

    @property
    def meaning(self) -> str:
        """What it says."""
        return self.value[2]


@dataclass(frozen=True, slots=True)
class Cell:
    """A patch in a release: how it stands, why, and the size of its file (hunks, lines added, lines removed)."""

    standing: PatchStatus
    why: str
    file: str = ""
    size: tuple[int, int, int] = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class Row:
    """A patch over all releases."""

    patch: PatchEntry
    cells: tuple[Cell, ...]


@dataclass(frozen=True, slots=True)
class Column:
    """A release: its entry in the manifest if it has one, and how its port went (counts by verdict)."""

    release: str
    entry: ReleaseEntry | None
    port: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Overview:
    """A series over releases."""

    manifest: Manifest
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

    @property
    def legacy(self) -> str:
        """The release from which the series serves only the old backend."""
        return self.manifest.series.legacy_from


def overview(folder: Path, releases: Sequence[str]) -> Overview:
    """Return how the series in `folder` stands in `releases` and in those its manifest has."""
    manifest = manifests.load(folder)
    names = sorted({*releases, *manifest.release}, key=Version)
    rows = tuple(Row(patch, tuple(_cell(folder, manifest, patch, name) for name in names)) for patch in manifest.patch)
    columns = tuple(Column(name, manifest.release.get(name), _port(folder / name)) for name in names)
    return Overview(manifest, columns, rows)


def _cell(folder: Path, manifest: Manifest, patch: PatchEntry, release: str) -> Cell:
    """Return how one patch stands in one release."""
    entry = manifest.release.get(release)
    excluded = {item.id: item.reason for item in entry.not_applicable} if entry else {}
    if patch.id in excluded:
        return Cell(PatchStatus.NOT_APPLICABLE, excluded[patch.id])
    if entry and patch.id in entry.patches:
        name = manifest.file_names(release)[entry.patches.index(patch.id)]
        proven = entry.verified is Verified.PROBED
        standing = PatchStatus.NEEDED if proven else PatchStatus.UNVERIFIED
        return Cell(standing, entry.verified.value, name, _size(folder / release / name))
    since = patch.applied_upstream
    if since and Version(release) >= Version(since):
        return Cell(PatchStatus.UPSTREAM, f"upstream since {since}")
    if patch.covers(release):
        return Cell(PatchStatus.MISSING, f"its range {patch.applies} has this release")
    return Cell(PatchStatus.NOT_APPLICABLE, f"its range is {patch.applies}")


def _size(path: Path) -> tuple[int, int, int]:
    """Return hunks, added and removed lines of a patch file."""
    if not path.is_file():
        return 0, 0, 0
    hunks = [hunk for change in read(path).changes for hunk in change.hunks]
    return len(hunks), sum(len(h.added) for h in hunks), sum(len(h.removed) for h in hunks)


class _Verdict(msgspec.Struct):
    verdict: str
    method: str = ""


class _Patch(msgspec.Struct):
    verdicts: list[_Verdict]


class _Port(msgspec.Struct):
    """The part of a `port.json` that counts."""

    patches: list[_Patch]


def _port(folder: Path) -> tuple[tuple[str, int], ...]:
    """Return the verdicts of a release's port, counted; none when it was not ported."""
    path = folder / "port.json"
    if not path.is_file():
        return ()
    counts: dict[str, int] = {}
    for patch in msgspec.json.decode(path.read_bytes(), type=_Port).patches:
        for item in patch.verdicts:
            word = "by hand" if item.method == "human" and item.verdict == "drifted" else item.verdict
            counts[word] = counts.get(word, 0) + 1
    return tuple(counts.items())
