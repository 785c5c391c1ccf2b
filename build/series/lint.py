"""Check series: manifest, coverage and files; if a release's sources are on this machine, apply and export again."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from build.errors import PatchError, ReleaseDataError, ToolError
from build.git import Git
from build.series import manifest as manifests
from build.series.apply import commit_patches
from build.series.commits import export_series, new_repository
from build.series.manifest import REPORTS, Manifest, PatchEntry
from build.series.model import ChangeKind, PatchFile, Verdict
from build.series.parameters import places, unplaced
from build.series.patchfile import REQUIRED, diffstat, is_mail, read

_HEADERS = (".h", ".hpp", ".hh", ".hxx", ".cuh", ".inc", ".inl")
_ZERO = b"From " + b"0" * 40 + b" "


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, and where."""

    where: str
    what: str


#: A release's tree on this machine: a git repository, and a revision of it.
Source = tuple[Path, str]
#: Returns a release's source if it is on this machine, else None; it does not download.
FindSource = Callable[[str], "Source | None"]


@dataclass(frozen=True, slots=True)
class LintReport:
    """The findings of lint, and the releases whose patches were applied and exported again."""

    findings: tuple[Finding, ...]
    files: int
    applied: tuple[str, ...]
    not_applied: tuple[str, ...]


def lint_series(folder: Path, find_source: FindSource | None = None) -> LintReport:
    """Check the series in `folder` (`patches/<series>`); without `find_source`, patches are not applied."""
    try:
        manifest = manifests.load(folder)
    except ReleaseDataError as error:
        return LintReport((Finding(folder.name, str(error)),), 0, (), ())
    findings = [*_coverage(folder.name, manifest), *_files(folder, manifest)]
    applied, skipped, count = [], [], 0
    for release in manifest.release:
        patches, bad = _read_release(folder, manifest, release)
        findings += bad
        findings += _variables(f"{folder.name}/{release}", manifest, patches)
        count += len(patches)
        source = find_source(release) if find_source and not bad and patches else None
        if source is None:
            skipped.append(release)
            continue
        findings += _round_trip(f"{folder.name}/{release}", source, patches)
        applied.append(release)
    return LintReport(tuple(findings), count, tuple(applied), tuple(skipped))


def _coverage(series: str, manifest: Manifest) -> Iterator[Finding]:
    """Check that exactly the patches whose range covers a release have a file there, or a reason why not."""
    for release, entry in manifest.release.items():
        where = f"{series}/{release}"
        listed = {*entry.patches, *(item.id for item in entry.not_applicable), *entry.missing}
        for patch in manifest.patch:
            if patch.id in entry.missing or (patch.covers(release) and patch.id not in listed):
                yield Finding(where, f"patch {patch.id!r} covers the release, but has no file for it")
            if patch.id in entry.patches and not patch.covers(release):
                yield Finding(where, f"patch {patch.id!r} has a file, but its range {patch.applies!r} excludes it")
        if entry.derived_from and entry.derived_from not in manifest.release:
            yield Finding(where, f"is derived from {entry.derived_from}, which the manifest does not have")


def _files(folder: Path, manifest: Manifest) -> Iterator[Finding]:
    """Find files that the manifest does not name, pages beside it excepted, and symbolic links."""
    named = {"manifest.toml", *(page.name for page in folder.glob("*.md"))}
    for release in manifest.release:
        named |= {f"{release}/{name}" for name in (*manifest.file_names(release), *REPORTS)}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if path.is_symlink():
            yield Finding(f"{folder.name}/{name}", "is a symbolic link")
        elif path.is_file() and name not in named:
            yield Finding(f"{folder.name}/{name}", "the manifest does not name this file")


def _read_release(folder: Path, manifest: Manifest, release: str) -> tuple[list[PatchFile], list[Finding]]:
    patches, findings = [], []
    try:
        paths = manifests.patch_paths(folder, manifest, release)
    except ReleaseDataError as error:
        return [], [Finding(f"{folder.name}/{release}", str(error))]
    for patch_id, path in paths.items():
        where = f"{folder.name}/{release}/{path.name}"
        try:
            patch = read(path)
        except PatchError as error:
            findings.append(Finding(where, str(error)))
            continue
        patches.append(patch)
        findings += [Finding(where, text) for text in problems(patch, manifest.entry(patch_id))]
    return patches, findings


def _variables(where: str, manifest: Manifest, patches: list[PatchFile]) -> Iterator[Finding]:
    """Check that the patches name the build variables of the manifest, all of them, and where their value can go."""
    if not manifest.parameter:
        return
    found = {(patch.name, name, kind) for patch in patches for name, kind in places(patch)}
    known = {item.name for item in manifest.parameter if not item.output}
    for name in sorted(unplaced(manifest.parameter) - {name for _, name, _ in found}):
        yield Finding(where, f"no patch has @{name}@, so the variable has no effect")
    for patch, name, kind in sorted(found, key=str):
        if name not in known:
            yield Finding(f"{where}/{patch}", f"has @{name}@, which the manifest does not have as a variable")
        elif kind is not ChangeKind.ADDED:
            yield Finding(f"{where}/{patch}", f"has @{name}@ in a file that it does not add: its blob id is not known")


def _round_trip(where: str, source: Source, patches: list[PatchFile]) -> Iterator[Finding]:
    """Apply with zero fuzz and zero offset, export again, compare bytes."""
    with tempfile.TemporaryDirectory(prefix="multiworld-lint-") as temporary:
        try:
            original = Git(source[0])
            base = original.resolve(source[1])
            git = new_repository(original, Path(temporary, "tree"))
            head, verdicts = commit_patches(git, base, patches)
            exported = export_series(git, base, head)
        except ToolError as error:
            yield Finding(where, str(error))
            return
    for item in verdicts:
        if item.verdict is not Verdict.CLEAN:
            what = f"{item.path} hunk {item.hunk} applies with an offset of {item.offset}"
            yield Finding(f"{where}/{item.patch}", what)
    for patch, again in zip(patches, exported, strict=True):
        if patch.data != again:
            what = f"exporting it again gives other bytes ({_first_difference(patch, again)})"
            yield Finding(f"{where}/{patch.name}", what)


def _first_difference(patch: PatchFile, other: bytes) -> str:
    for number, (a, b) in enumerate(zip(patch.data.split(b"\n"), other.split(b"\n"), strict=False), 1):
        if a != b:
            return f"line {number}: {a[:60]!r} becomes {b[:60]!r}"
    return "one is longer"


def problems(patch: PatchFile, entry: PatchEntry) -> list[str]:
    return [*_form(patch), *_fields(patch, entry), *_content(patch), *_headers(patch, entry)]


def _form(patch: PatchFile) -> Iterator[str]:
    if not patch.data.startswith(_ZERO):
        yield "is not written by git format-patch --zero-commit (its first line must be 'From 000…')"
    if not is_mail(patch.data) or "Subject" not in patch.fields:
        yield "has no mail header with a subject"
    if patch.crlf:
        yield "has DOS line ends in its own structure"
    if not patch.changes:
        yield "changes nothing"
    if patch.trailer.strip():
        yield f"has text after its last hunk: {patch.trailer[:40]!r}"
    elif patch.trailer not in {b"", b"\n"}:
        yield "ends in blank lines"


def _fields(patch: PatchFile, entry: PatchEntry) -> Iterator[str]:
    for name in REQUIRED:
        if not patch.fields.get(name):
            yield f"lacks the DEP-3 field {name}"
    upstream = patch.fields.get("Applied-Upstream", "")
    if entry.applied_upstream and entry.applied_upstream not in upstream:
        yield f"says Applied-Upstream: {upstream or 'nothing'}, the manifest {entry.applied_upstream}"
    if not entry.applied_upstream and upstream and not upstream.lower().startswith("no"):
        yield f"says Applied-Upstream: {upstream}, the manifest says it is not"


def _content(patch: PatchFile) -> Iterator[str]:
    paths = [change.path for change in patch.changes]
    yield from (f"changes {path} twice" for path in sorted({p for p in paths if paths.count(p) > 1}))
    for change in patch.changes:
        if change.kind is not ChangeKind.MODE and len(change.old_blob or change.new_blob or "") != 40:
            yield f"names no full blob ids for {change.path} (format-patch --full-index)"
        if change.binary == b"":
            yield f"says that {change.path} differs, but not how (format-patch --binary)"
    stat = diffstat(patch.header)
    if stat is None:
        yield "has no diffstat"
    elif stat != patch.counts and all(change.binary is None for change in patch.changes):
        yield f"its diffstat says {stat} (files, insertions, deletions), its hunks are {patch.counts}"


def _headers(patch: PatchFile, entry: PatchEntry) -> Iterator[str]:
    declared = {change.path for change in entry.header_changes}
    for change in patch.changes:
        if change.path.endswith(_HEADERS) and change.path not in declared:
            yield f"changes the header {change.path}, and the manifest gives no reason why that is safe"
