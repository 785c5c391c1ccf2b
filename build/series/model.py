"""The parts of a patch, as immutable data. Lines keep their prefix and line end, byte for byte."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from enum import Enum

from build.git import SUBMODULE, SYMLINK

#: Blob id of an empty file (SHA-1), what git writes in `index` lines of empty files.
EMPTY_BLOB = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
MODES = frozenset({"100644", "100755", SYMLINK, SUBMODULE})
_COMMIT = re.compile(rb"Subproject commit ([0-9a-f]{40})")


class ChangeKind(Enum):
    """Kinds of changes of one file."""

    MODIFIED = "modified"
    ADDED = "added"
    DELETED = "deleted"
    RENAMED = "renamed"
    COPIED = "copied"
    MODE = "mode only"


@dataclass(frozen=True, slots=True)
class Hunk:
    """One hunk.

    Attributes:
        old_start: first line it replaces, counted from 1 (0 when the old side is empty and at the top).
        new_start: first line of the result, likewise.
        lines: each with its prefix (space, `-`, `+`) and its line end; a last line without `\\n` is one that
            ends its file without a newline.
        line: line number of its `@@` in the patch file, from 1.
    """

    old_start: int
    new_start: int
    lines: tuple[bytes, ...]
    line: int = 0

    @property
    def old(self) -> list[bytes]:
        """Lines before the change: context and removed ones."""
        return [text[1:] for text in self.lines if text[:1] != b"+"]

    @property
    def new(self) -> list[bytes]:
        """Lines after the change: context and added ones."""
        return [text[1:] for text in self.lines if text[:1] != b"-"]

    @property
    def removed(self) -> list[bytes]:
        return [text[1:] for text in self.lines if text[:1] == b"-"]

    @property
    def added(self) -> list[bytes]:
        return [text[1:] for text in self.lines if text[:1] == b"+"]

    @property
    def bare(self) -> bool:
        return all(text[:1] != b" " for text in self.lines)

    @property
    def first(self) -> int:
        """Index (from 0) of the line where the old side begins; `-N,0` means *after* line N."""
        return self.old_start - 1 if self.old else self.old_start


@dataclass(frozen=True, slots=True)
class FileChange:
    """The change of one file.

    Attributes:
        kind: see `ChangeKind`.
        old_path: path before, None for a new file; `new_path` after, None for a deleted file.
        old_mode: octal mode before, where the patch names it; `new_mode` likewise after.
        old_blob: blob id before, possibly abbreviated, where the patch names it; `new_blob` likewise after.
        hunks: in the order of the file.
        binary: the raw `GIT binary patch` section; empty for `Binary files differ`, None for text.
        line: line number in the patch file where its header begins.
        raw: the two names as written, before leading folders are stripped.
    """

    kind: ChangeKind
    old_path: str | None = None
    new_path: str | None = None
    old_mode: str | None = None
    new_mode: str | None = None
    old_blob: str | None = None
    new_blob: str | None = None
    hunks: tuple[Hunk, ...] = ()
    binary: bytes | None = None
    line: int = 0
    raw: tuple[str | None, str | None] = (None, None)

    @property
    def path(self) -> str:
        return self.new_path or self.old_path or ""

    @property
    def added_content(self) -> bytes:
        return b"".join(line for hunk in self.hunks for line in hunk.new)

    @property
    def submodule_commits(self) -> tuple[bytes, bytes] | None:
        """The commits of a submodule before and after (empty for none); None for a change of another kind of file."""
        if SUBMODULE not in {self.old_mode, self.new_mode}:
            return None
        removed = b"".join(line for hunk in self.hunks for line in hunk.old)
        before, after = (_COMMIT.search(lines) for lines in (removed, self.added_content))
        return before[1] if before else b"", after[1] if after else b""


@dataclass(frozen=True, slots=True)
class PatchFile:
    """One patch file.

    Attributes:
        name: its file name, for messages.
        data: all its bytes.
        header: what precedes the first change: mail header, message, DEP-3 fields, diffstat.
        changes: one per file section, in order.
        trailer: what follows the last change (a mail signature).
        crlf: the patch's own structure has DOS line ends, so it went through a text conversion.
        fields: DEP-3 fields by name, first one wins.
        diff_offset: where in `data` the first change begins.
        mended: what was read otherwise than it is written, as GNU patch does, in words.
        fault: why nobody can read the patch, which then has no changes; empty if it could be read.
        outside: changes that are not applied, and not among `changes`: of files that an imported tree does not have.
    """

    name: str
    data: bytes
    header: bytes
    changes: tuple[FileChange, ...]
    trailer: bytes = b""
    crlf: bool = False
    fields: dict[str, str] = field(default_factory=dict)
    diff_offset: int = 0
    outside: tuple[FileChange, ...] = ()
    mended: tuple[str, ...] = ()
    fault: str = ""

    @property
    def diff(self) -> bytes:
        """The bytes from the first change on: what `git apply` gets."""
        return self.data[self.diff_offset :]

    @property
    def subject(self) -> str:
        """The one-line summary: mail subject, DEP-3 description, or the file's name."""
        first = (self.fields.get("Subject") or self.fields.get("Description") or self.name).splitlines()
        return (first or [self.name])[0]

    @property
    def counts(self) -> tuple[int, int, int]:
        """Files, insertions and deletions, as a diffstat counts them."""
        hunks = [hunk for change in self.changes for hunk in change.hunks]
        return len(self.changes), sum(len(hunk.added) for hunk in hunks), sum(len(hunk.removed) for hunk in hunks)

    @property
    def paths(self) -> frozenset[str]:
        return frozenset(p for c in self.changes for p in (c.old_path, c.new_path) if p is not None)


class Verdict(Enum):
    """The outcome for one hunk (or a change without hunks) of applying or porting its patch."""

    CLEAN = "clean"
    OFFSET = "offset"
    DRIFTED = "drifted"
    MOVED = "file moved"
    UPSTREAM = "already upstream"
    PARTLY = "partly upstream"
    CONFLICT = "conflict"
    GONE = "file gone"

    @property
    def needs_human(self) -> bool:
        return self in {Verdict.CONFLICT, Verdict.GONE}


class Method(Enum):
    """The method that placed a hunk, in the order in which methods are tried."""

    EXACT = "exact"
    OFFSET = "offset"
    MERGE = "three-way merge"
    MOVED_CODE = "moved code"
    MOVED_FILE = "moved file"
    UPSTREAM = "upstream"
    HUMAN = "human"


@dataclass(frozen=True, slots=True)
class HunkVerdict:
    """The verdict about one hunk.

    Attributes:
        patch: name of the patch file.
        path: the file as the patch names it.
        hunk: number of the hunk in its file, from 1; 0 for a change without hunks (mode, rename, binary).
        verdict: see `Verdict`.
        method: how it was placed; `UPSTREAM` of a conflict says that upstream may have it in another form.
        line: first line of the hunk in the result, from 1; 0 where it has none.
        offset: lines between where the patch says and where it went.
        new_path: the file it went to, if that is another one.
        evidence: why the verdict is what it is, for a person.
    """

    patch: str
    path: str
    hunk: int
    verdict: Verdict
    method: Method
    line: int = 0
    offset: int = 0
    new_path: str = ""
    evidence: str = ""
