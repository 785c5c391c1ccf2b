"""Apply a series to its own release: a checkout with one commit per patch, and a verdict per hunk. No fuzz."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from build.errors import PatchError, UsageError
from build.series.checkout import is_dirty, new_repository, replace_folder
from build.series.commits import commit_tree, message_of
from build.series.git import Git, require_repository
from build.series.inspect import inspect, require_all_placed
from build.series.model import ChangeKind, PatchFile
from build.series.verdicts import HunkVerdict

#: Inside the checkout's `.git`: what was applied to what, so that a second run knows there is nothing to do.
_RECORD = "multiworld-applied.json"
_STATUS = {
    "A": ChangeKind.ADDED,
    "D": ChangeKind.DELETED,
    "R": ChangeKind.RENAMED,
    "C": ChangeKind.COPIED,
    "M": ChangeKind.MODIFIED,
    "T": ChangeKind.MODIFIED,
}


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
    """What `_RECORD` holds."""

    key: str
    head: str
    verdicts: tuple[HunkVerdict, ...]


def apply_series(repo: Path, base: str, patches: Sequence[PatchFile], target: Path) -> AppliedTree:
    """Apply `patches` to `base` in a checkout of their own.

    Args:
        repo: a git repository that has `base`; it is only read.
        base: the release's commit.
        patches: in order.
        target: folder of the checkout; replaced as a whole when base or patches changed, else kept.

    Returns:
        The checkout with what changed and a verdict per hunk.

    Raises:
        PatchError: a hunk does not stand where it should; nothing is left in `target`.
        SourceError: `repo` is no repository or lacks `base`.
        UsageError: `target` holds changes that are not committed.
    """
    source = require_repository(repo)
    base = source.resolve(base)
    key = _key(base, patches)
    record = _read_record(target)
    if record is not None:
        _refuse_dirty(target)
        if record.key == key and Git(target).call("rev-parse", "HEAD").stdout.decode().strip() == record.head:
            return _result(Git(target), base, record)
    elif target.exists() and any(target.iterdir()):
        raise UsageError(f"{target} exists and was not made by this command", remedy="give another folder, or empty it")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{target.name}.", dir=target.parent) as temporary:
        beside = Path(temporary, "tree")
        git = new_repository(source, beside)
        record = _Record(key, *commit_patches(git, base, patches))
        _check_out(git, base, record)
        replace_folder(beside, target)
    return _result(Git(target), base, record)


def commit_patches(git: Git, base: str, patches: Sequence[PatchFile]) -> tuple[str, tuple[HunkVerdict, ...]]:
    """Commit `patches` on `base` without a work tree.

    Returns:
        Id of the last commit, and the verdicts.

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
            head = commit_tree(staged, staged.line("write-tree", "--missing-ok"), head, message_of(staged, patch))
    return head, tuple(verdicts)


def _stage(staged: Git, patch: PatchFile) -> None:
    """Apply one patch to the index; git refuses fuzz and anything beyond a symbolic link by itself."""
    if not patch.changes:
        return
    options = ["--unidiff-zero"] if any(hunk.bare for c in patch.changes for hunk in c.hunks) else []
    done = staged.call("apply", "--cached", "--whitespace=nowarn", *options, "-", stdin=patch.diff)
    if done.returncode:
        raise PatchError(
            f"{patch.name} does not apply to its release",
            cause=done.tail,
            remedy="check that the tree is the release's; a series is moved with regenerate-patch",
        )


def _check_out(git: Git, base: str, record: _Record) -> None:
    """Check out the patched tree and leave the record that says what it is."""
    git.out("update-ref", "refs/heads/patched", record.head)
    git.out("update-ref", "refs/tags/base", base)
    git.out("read-tree", "--reset", "-u", record.head)
    (git.git_dir() / _RECORD).write_bytes(msgspec.json.encode(record))


def _read_record(target: Path) -> _Record | None:
    """Return what an earlier run left in `target`, None when it is no such checkout."""
    try:
        return msgspec.json.decode((target / ".git" / _RECORD).read_bytes(), type=_Record)
    except (OSError, msgspec.DecodeError):
        return None


def _refuse_dirty(target: Path) -> None:
    """Refuse to lose someone's edits."""
    if changed := is_dirty(target):
        raise UsageError(
            f"{target} has changes that are not committed: {', '.join(changed[:5])}",
            cause="files of the checkout were edited",
            remedy="commit them elsewhere or remove the folder, then run again",
        )


def _key(base: str, patches: Sequence[PatchFile]) -> str:
    """Return the digest of everything the result depends on."""
    digest = hashlib.sha256(base.encode())
    for patch in patches:
        digest.update(b"\0" + patch.name.encode() + b"\0" + hashlib.sha256(patch.data).digest())
    return digest.hexdigest()


def _result(git: Git, base: str, record: _Record) -> AppliedTree:
    return AppliedTree(git.folder, base, record.head, changed_paths(git, base, record.head), record.verdicts)


def changed_paths(git: Git, base: str, head: str) -> tuple[ChangedPath, ...]:
    """Return the files that differ between two commits or trees, renames found as git does."""
    raw = git.out("diff-tree", "-r", "-z", "--raw", "--no-abbrev", "--find-renames=50%", base, head)
    parts = iter(os.fsdecode(part) for part in raw.split(b"\0")[:-1])
    found = []
    for meta in parts:
        old_mode, new_mode, old_blob, new_blob, status = meta.lstrip(":").split(" ")
        old_path = next(parts)
        path = next(parts) if status[0] in "RC" else old_path
        found.append(ChangedPath(path, _STATUS[status[0]], old_path, old_mode, new_mode, old_blob, new_blob))
    return tuple(found)
