"""What lint asks of one patch file by itself, without any source tree."""

from __future__ import annotations

from collections.abc import Iterator

from unidiff import PatchSet
from unidiff.errors import UnidiffParseError

from build.series.fields import REQUIRED, diffstat, is_mail
from build.series.manifest import PatchEntry
from build.series.model import ChangeKind, FileChange, PatchFile

_HEADERS = (".h", ".hpp", ".hh", ".hxx", ".cuh", ".inc", ".inl")
_ZERO = b"From " + b"0" * 40 + b" "
_RENAMES = {ChangeKind.RENAMED, ChangeKind.COPIED}


def problems(patch: PatchFile, entry: PatchEntry) -> list[str]:
    """Return what is wrong with a patch of this project, as sentences.

    Args:
        patch: the file, already read.
        entry: what the manifest says about it.
    """
    return [
        *_form(patch),
        *_fields(patch, entry),
        *_content(patch),
        *_headers(patch, entry),
        *_second_reading(patch),
    ]


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
        yield f"has something behind its last hunk: {patch.trailer[:40]!r}"
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
    counted = (len(patch.changes), *_plus_minus(patch.changes))
    if stat is None:
        yield "has no diffstat"
    elif stat != counted and all(change.binary is None for change in patch.changes):
        yield f"its diffstat says {stat} (files, insertions, deletions), its hunks are {counted}"


def _headers(patch: PatchFile, entry: PatchEntry) -> Iterator[str]:
    declared = {change.path for change in entry.header_changes}
    for change in patch.changes:
        if change.path.endswith(_HEADERS) and change.path not in declared:
            yield f"changes the header {change.path}, and the manifest gives no reason why that is safe"


def _plus_minus(changes: tuple[FileChange, ...]) -> tuple[int, int]:
    hunks = [hunk for change in changes for hunk in change.hunks]
    return sum(len(hunk.added) for hunk in hunks), sum(len(hunk.removed) for hunk in hunks)


def _second_reading(patch: PatchFile) -> Iterator[str]:
    """Compare with unidiff, which reads patches by other code than ours."""
    try:
        # Latin-1 maps every byte to one character, so nothing is lost; only "\n" may end a line.
        other = PatchSet(patch.diff.decode("latin-1").splitlines(keepends=True))
    except UnidiffParseError as error:
        yield f"unidiff cannot read it: {error}"
        return
    ours = sorted((len(c.hunks), *_plus_minus((c,))) for c in patch.changes if c.hunks)
    theirs = sorted((len(f), f.added, f.removed) for f in other if len(f))
    if ours != theirs:
        yield f"unidiff reads (hunks, insertions, deletions) {theirs}, this tool {ours}"
