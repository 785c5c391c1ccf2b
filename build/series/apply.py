"""Apply a series to its own release without fuzz: a checkout with one commit per patch, and a verdict per hunk."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from build.errors import PatchError, SourceError, UsageError
from build.git import SYMLINK, Git
from build.paths import sweep
from build.seals import read_record, write_record
from build.series.commits import commit_patch, new_repository, replacing
from build.series.inspect import NOT_THE_RELEASE, inspect, require_all_placed
from build.series.model import ChangeKind, HunkVerdict, PatchFile

#: In the checkout's `.git`: what was applied to what, so that a second run with the same input does nothing.
_RECORD = "multiworld-applied.json"
#: What is no plain character in the patterns of git-apply(1), and how it becomes one.
_PATTERN, _LITERAL = re.compile(r"([*?\[\\])"), r"\\\1"
_FULL_ID = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_STATUS = {"A": ChangeKind.ADDED, "D": ChangeKind.DELETED, "R": ChangeKind.RENAMED, "C": ChangeKind.COPIED}


@dataclass(frozen=True, slots=True)
class ChangedPath:
    """A file that differs between a release and its patched tree, with its blob ids and modes."""

    path: str
    kind: ChangeKind
    old_path: str
    old_mode: str
    new_mode: str
    old_blob: str
    new_blob: str


@dataclass(frozen=True, slots=True)
class AppliedTree:
    """A release with a series applied.

    Attributes:
        checkout: the work tree, at `head`.
        base: commit of the release.
        head: commit of the last patch; depends on `base` and the patches alone.
        changed: what differs between the two.
        verdicts: one per hunk, in the order of the patches.
    """

    checkout: Path
    base: str
    head: str
    changed: tuple[ChangedPath, ...]
    verdicts: tuple[HunkVerdict, ...]


class _Record(msgspec.Struct, frozen=True):
    key: str
    head: str
    verdicts: tuple[HunkVerdict, ...]
    changed: tuple[ChangedPath, ...]


def apply_series(repo: Path, base: str, patches: Sequence[PatchFile], target: Path) -> AppliedTree:
    """Apply `patches` in order to the release's commit `base`; call it with the lock on `target` held.

    `repo` has `base` and is only read. `target`, the folder of the checkout, is replaced as a whole when base or
    patches changed, else kept.

    Raises:
        PatchError: a hunk does not fit where it should; nothing is left in `target`.
        SourceError: `repo` is not a repository or lacks `base`.
        UsageError: `target` holds changes that are not committed.
    """
    sweep(target)
    source = Git(repo)
    if not _FULL_ID.fullmatch(base):
        base = source.resolve(base)
    key = key_of(base, patches)
    if kept := _kept(target, base, key):
        return kept
    base = source.resolve(base)
    with replacing(target) as new:
        git = new_repository(source, new)
        head, verdicts = commit_patches(git, base, patches)
        record = _Record(key, head, verdicts, changed_paths(git, base, head))
        git.out("update-ref", "refs/heads/patched", head)
        git.out("update-ref", "refs/tags/base", base)
        git.out("read-tree", "--reset", "-u", head)
        write_record(git.git_dir() / _RECORD, record)
    return AppliedTree(target, base, head, record.changed, verdicts)


def _kept(target: Path, base: str, key: str) -> AppliedTree | None:
    """Return the checkout of an earlier run; None if it does not exist or is of other patches.

    Raises:
        SourceError: it is damaged; it may have commits of a person, so it is not replaced.
        UsageError: it holds a person's changes or commits, or was not made here.
    """
    record = read_record(target / ".git" / _RECORD, _Record)
    if record is None:
        if os.path.lexists(target) and not (target.is_dir() and not any(target.iterdir())):
            what = f"{target} exists and was not made by this command, or its record is damaged"
            raise UsageError(what, remedy="give another folder, or remove that one")
        return None
    try:
        _refuse_edits(Git(target), record.head)
        same = record.key == key and Git(target).line("rev-parse", "HEAD") == record.head
    except SourceError as error:
        what, remedy = f"the checkout {target} cannot be read: {error.what}", "save your commits in it, and remove it"
        raise SourceError(what, cause=error.cause, remedy=remedy) from None
    return AppliedTree(target, base, record.head, record.changed, record.verdicts) if same else None


def _refuse_edits(git: Git, head: str) -> None:
    """Raise UsageError for a checkout with changes, or with commits that are not below `head`."""
    if changed := git.changed_files():
        what = f"{git.folder} has changes that are not committed: {', '.join(changed[:5])}"
        raise UsageError(what, remedy="commit them elsewhere or remove the folder, then run again")
    count = git.line("rev-list", "--count", "HEAD", f"^{head}")
    if count != "0":
        remedy = "save them with `git format-patch`; then remove the folder, or give another one with --into"
        raise UsageError(f"{git.folder} has {count} commits that this command did not make", remedy=remedy)


def check_files(applied: AppliedTree, names: Collection[str]) -> None:
    """Compare the files `names` of the checkout with the commit: their bytes went into a result.

    git itself does not read a file whose time and size are unchanged. Names that the commit lacks are passed over.

    Raises:
        SourceError: a file is not the commit's.
    """
    git = Git(applied.checkout)
    known = git.files(applied.head)
    regular = [known[name] for name in names if name in known and known[name].mode != SYMLINK]
    asked = "".join(f"{item.path}\n" for item in regular)
    found = git.line("hash-object", "--no-filters", "--stdin-paths", stdin=os.fsencode(asked)).split()
    wrong = sorted(item.path for item, blob in zip(regular, found, strict=True) if item.blob != blob)
    if wrong:
        what = f"files of the checkout {applied.checkout} are not those of its commit: {', '.join(wrong[:5])}"
        raise SourceError(what, remedy="remove the folder and run again; nothing was built from it")


def commit_patches(git: Git, base: str, patches: Sequence[PatchFile]) -> tuple[str, tuple[HunkVerdict, ...]]:
    """Commit `patches` on `base` without a work tree; return the id of the last commit, and the verdicts.

    Raises:
        PatchError: a hunk does not apply.
    """
    head, verdicts = base, []
    with tempfile.TemporaryDirectory(prefix="multiworld-") as folder:
        staged = Git(git.folder, Path(folder, "index"))
        staged.out("read-tree", base)
        for patch in patches:
            placed = inspect(git, head, patch)
            require_all_placed(patch, placed)
            verdicts += placed
            _stage(staged, patch)
            head = commit_patch(staged, staged.line("write-tree", "--missing-ok"), head, patch)
    return head, tuple(verdicts)


def _stage(staged: Git, patch: PatchFile) -> None:
    """Apply one patch to the index; git itself refuses fuzz and paths beyond a symbolic link."""
    if not patch.changes:
        return
    options = ["--unidiff-zero"] if any(hunk.bare for c in patch.changes for hunk in c.hunks) else []
    options += [f"--exclude={_PATTERN.sub(_LITERAL, change.path)}" for change in patch.outside]
    done = staged.call("apply", "--cached", "--whitespace=nowarn", *options, "-", stdin=patch.diff)
    if done.returncode:
        raise PatchError(f"{patch.name} does not apply to its release", cause=done.tail, remedy=NOT_THE_RELEASE)


def key_of(base: str, patches: Sequence[PatchFile]) -> str:
    """Return a digest of the trees, which `base` names, and of the patches."""
    digest = hashlib.sha256(base.encode())
    for patch in patches:
        digest.update(b"\0" + patch.name.encode() + b"\0" + hashlib.sha256(patch.data).digest())
    return digest.hexdigest()


def changed_paths(git: Git, base: str, head: str) -> tuple[ChangedPath, ...]:
    """Return the files that differ between two commits or trees, renames found as git does."""
    raw = git.out("diff-tree", "-r", "-z", "--raw", "--no-abbrev", "--find-renames=50%", base, head)
    parts = iter(os.fsdecode(part) for part in raw.split(b"\0")[:-1])
    found = []
    for meta in parts:
        old_mode, new_mode, old_blob, new_blob, status = meta.lstrip(":").split(" ")
        old_path = next(parts)
        path = next(parts) if status[0] in "RC" else old_path
        kind = _STATUS.get(status[0], ChangeKind.MODIFIED)
        found.append(ChangedPath(path, kind, old_path, old_mode, new_mode, old_blob, new_blob))
    return tuple(found)
