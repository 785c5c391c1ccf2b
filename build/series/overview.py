"""Patches by release: which patch a release needs, has, or does not need, and how far that is proven."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from packaging.version import Version

from build.series import manifest as manifests
from build.series.manifest import Manifest, PatchEntry, ReleaseEntry
from build.series.patchfile import read


class Progress(Enum):
    """Words for `Verified` in all tables and pages, and its colour on a page."""

    NONE = ("not ported", "failed", "patches are missing, or do not apply yet")
    PORTED = ("ported", "built", "the patches apply to the release's source")
    COMPILED = ("built", "built", "they are compiled and linked against the official wheel")
    PROBED = ("proven", "proven", "the probes fail on the official wheel and pass on the patched one")
    #: No step: there is nothing to do.
    NOT_NEEDED = ("not needed", "none", "no patch of the series is for the release, or it has all of them itself")

    def __init__(self, word: str, colour: str, meaning: str) -> None:
        self.word, self.colour, self.meaning = word, colour, meaning


def progress(entry: ReleaseEntry | None) -> Progress:
    return Progress[entry.verified.name] if entry else Progress.NONE


class PatchStatus(Enum):
    """A patch in a release: symbol, word, its colour on a page and its style on the terminal, meaning."""

    PROVEN = ("●", "proven", "proven green", "the release needs the patch, has it, and probes prove that it works")
    UNPROVEN = ("◐", "not proven", "built yellow", "the release needs the patch and has it; no probe has run on it yet")
    UPSTREAM = ("↑", "upstream", "upstream blue", "the release has the change itself")
    MISSING = ("✗", "missing", "failed red", "the release needs the patch and does not have it")
    NOT_NEEDED = ("·", "not needed", "none dim", "the release does not need the patch")

    def __init__(self, symbol: str, word: str, looks: str, meaning: str) -> None:
        self.symbol, self.word, self.meaning = symbol, word, meaning
        self.colour, self.style = looks.split()


@dataclass(frozen=True, slots=True)
class Cell:
    """A patch in a release: its status, why, and the size of its file (hunks, lines added, lines removed)."""

    status: PatchStatus
    why: str
    size: tuple[int, int, int] = (0, 0, 0)


@dataclass(frozen=True, slots=True)
class Column:
    """A release: its entry in the manifest if it has one, and how its port went (counts by verdict).

    Attributes:
        needed: whether it lacks a patch that it needs.
    """

    release: str
    entry: ReleaseEntry | None
    port: tuple[tuple[str, int], ...]
    needed: bool

    @property
    def progress(self) -> Progress:
        return progress(self.entry) if self.entry or self.needed else Progress.NOT_NEEDED


@dataclass(frozen=True, slots=True)
class Overview:
    """A series over releases; each row is a patch with its cells."""

    manifest: Manifest
    columns: tuple[Column, ...]
    rows: tuple[tuple[PatchEntry, tuple[Cell, ...]], ...]


def overview(folder: Path, releases: Sequence[str]) -> Overview:
    """Return the status of the series in `folder`, for `releases` and for those that its manifest has."""
    manifest = manifests.load(folder)
    names = sorted({*releases, *manifest.release}, key=Version)
    rows = tuple((patch, tuple(_cell(folder, manifest, patch, name) for name in names)) for patch in manifest.patch)
    columns = []
    for at, name in enumerate(names):
        lacks = any(cells[at].status is PatchStatus.MISSING for _, cells in rows)
        columns.append(Column(name, manifest.release.get(name), _port(folder / name), lacks))
    return Overview(manifest, tuple(columns), rows)


def _cell(folder: Path, manifest: Manifest, patch: PatchEntry, release: str) -> Cell:
    entry = manifest.release.get(release)
    excluded = {item.id: item.reason for item in entry.not_applicable} if entry else {}
    if patch.id in excluded:
        return Cell(PatchStatus.NOT_NEEDED, excluded[patch.id])
    if entry and patch.id in entry.patches:
        name = manifest.file_names(release)[entry.patches.index(patch.id)]
        proven = progress(entry) is Progress.PROBED
        status = PatchStatus.PROVEN if proven else PatchStatus.UNPROVEN
        return Cell(status, progress(entry).word, _size(folder / release / name))
    since = patch.applied_upstream
    if since and Version(release) >= Version(since):
        return Cell(PatchStatus.UPSTREAM, f"upstream since {since}")
    if patch.covers(release):
        return Cell(PatchStatus.MISSING, f"its range {patch.applies} has this release")
    return Cell(PatchStatus.NOT_NEEDED, f"its range is {patch.applies}")


def _size(path: Path) -> tuple[int, int, int]:
    if not path.is_file():
        return 0, 0, 0
    patch = read(path)
    return sum(len(change.hunks) for change in patch.changes), *patch.counts[1:]


def _port(folder: Path) -> tuple[tuple[str, int], ...]:
    """Return the counted verdicts of a release's port; empty if it was not ported."""
    path = folder / manifests.JSON
    if not path.is_file():
        return ()
    verdicts = [item for patch in json.loads(path.read_bytes())["patches"] for item in patch["verdicts"]]
    by_hand = {("human", "drifted"): "by hand"}
    return tuple(Counter(by_hand.get((v.get("method"), v["verdict"]), v["verdict"]) for v in verdicts).items())
