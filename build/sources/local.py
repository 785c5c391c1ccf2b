"""What the user names with `--source`: a git repository (at a revision), a tarball, or a folder. Only read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from build.console import note
from build.errors import DigestMismatchError, UsageError
from build.process import run
from build.releases import Release
from build.seals import sha256_of
from build.sources import readers
from build.sources.importer import Entries, cached_tree, command, git
from build.sources.tree import Proof, SourceKind, SourceTree, TreePurpose


@dataclass(frozen=True, slots=True)
class _Found:
    """What a `--source` turned out to be: its kind, what identifies it, and how to read it."""

    kind: SourceKind
    key: str
    shown: str
    entries: Callable[[], Entries]


def _split(source: Path) -> tuple[Path, str | None]:
    """Return path and revision of `PATH` or `PATH@REV`; a path that exists is never split."""
    text = str(source)
    if source.exists() or "@" not in text:
        return source.expanduser(), None
    head, _, revision = text.rpartition("@")
    return Path(head).expanduser(), revision


def _is_repository(path: Path) -> bool:
    """Whether `path` itself is a work tree or a bare repository: a folder inside of one is a folder."""
    return (path / ".git").exists() or all((path / name).exists() for name in ("HEAD", "objects", "refs"))


def _commit(path: Path, revision: str | None, release: Release) -> str:
    done = run(command(path, "rev-parse", "--verify", "--quiet", f"{revision or 'HEAD'}^{{commit}}"))
    if done.returncode:
        raise UsageError(
            f"{path} has no revision {revision or 'HEAD'}",
            cause=done.tail,
            remedy=f"name one that it has: --source {path}@{release.tag}",
        )
    return done.stdout.decode().strip()


def _changed(path: Path) -> None:
    """Say so when a work tree has changes: the commit is what is taken."""
    if not (path / ".git").exists():
        return
    done = run(
        # Not `command`: of a tree that is another user's, this could run the filters that its settings name.
        ["git", "-C", path, "status", "--porcelain", "--untracked-files=no", "--ignore-submodules=all"],
        env={"GIT_OPTIONAL_LOCKS": "0"},  # not even the index is refreshed
    )
    if done.returncode:
        note(f"{path}: its commit is used, whatever is uncommitted there; git says no more: {done.tail}")
    elif done.stdout:
        note(f"{path}: {len(done.stdout.splitlines())} uncommitted changes are not used; its commit is")


def _repository(path: Path, revision: str | None, release: Release, need: TreePurpose) -> _Found:
    commit = _commit(path, revision, release)
    if revision is None:
        _changed(path)
    return _Found(
        SourceKind.CHECKOUT, f"git {commit}", f"commit {commit}", lambda: readers.repository(path, commit, need)
    )


def _tarball(path: Path, need: TreePurpose) -> _Found:
    digest = sha256_of(path)
    return _Found(SourceKind.TARBALL, f"sha256 {digest}", f"sha256 {digest}", lambda: readers.tarball(path, need))


def _folder(path: Path, need: TreePurpose) -> _Found:
    """Identify a folder by names, sizes and times: reading it all again would cost what the cache saves."""
    fingerprint = hashlib.sha256(str(path.resolve()).encode())
    for name, status in readers.folder_files(path, need):
        fingerprint.update(
            # ctime: an edit that keeps the size and sets mtime back is one all the same.
            f"{name}\0{status.st_mode}\0{status.st_size}\0{status.st_mtime_ns}\0{status.st_ctime_ns}\n".encode(
                "utf-8", "surrogateescape"
            )
        )
    return _Found(SourceKind.FOLDER, f"folder {fingerprint.hexdigest()}", "", lambda: readers.folder(path, need))


def _look(source: Path, release: Release, need: TreePurpose) -> _Found:
    path, revision = _split(source)
    if not path.exists():
        raise UsageError(f"--source {source}: no such file or folder")
    if path.is_dir() and _is_repository(path):
        return _repository(path, revision, release, need)
    if revision is not None:
        raise UsageError(f"--source {source}: {path} is no git repository, so it has no revisions")
    return _folder(path, need) if path.is_dir() else _tarball(path, need)


def _blob_ids(repo: Path, paths: Iterable[str]) -> dict[str, str]:
    """Return the blob ids of `paths` at HEAD; a path that is not there is left out."""
    rows = git(repo, "ls-tree", "-z", "HEAD", "--", *paths).split(b"\0")[:-1]
    split = (row.partition(b"\t") for row in rows)
    return {name.decode(): description.split()[2].decode() for description, _, name in split}


def check_blobs(release: Release, repo: Path, where: str) -> None:
    """Compare the files that the series patch with their pinned blob ids.

    Raises:
        DigestMismatchError: one differs or is missing; both ids of each are shown.
    """
    found = _blob_ids(repo, release.blobs)
    wrong = [path for path in release.blobs if found.get(path) != release.blobs[path]]
    if wrong:
        rows = [f"{path}\n  pinned {release.blobs[path]}\n  found  {found.get(path, '(missing)')}" for path in wrong]
        raise DigestMismatchError(
            f"{where} is not PyTorch {release.version}: {len(wrong)} of {len(release.blobs)} pinned files differ\n"
            + "\n".join(rows),
            cause="another release, a branch, or a tree with changes of its own",
            remedy=f"name the release itself: --source PATH@{release.tag}, or its tarball",
        )


def _proof(release: Release, found: _Found, repo: Path, where: str) -> tuple[Proof, str]:
    """Return how the tree is known to be the release's, and what was compared."""
    if found.key == f"git {release.commit}":
        return Proof.COMMIT, found.shown
    if release.debian and found.key == f"sha256 {release.debian.orig_sha256}":
        return Proof.DIGEST, found.shown
    tree = git(repo, "rev-parse", "HEAD^{tree}").decode().strip()
    shown = found.shown or f"tree {tree}"
    if release.blobs:
        check_blobs(release, repo, where)
        return Proof.BLOBS, f"{shown}; {len(release.blobs)} files by blob id"
    return Proof.NONE, shown


def acquire_local(release: Release, source: Path, need: TreePurpose) -> SourceTree:
    """Return the tree of what the user names.

    Args:
        release: which release it must be.
        source: `PATH` or, for a git repository, `PATH@REV` (default: its HEAD). A tarball has one top folder.
        need: chooses the files.

    Raises:
        UsageError: no such path or revision.
        DigestMismatchError: it is not the release.
        SourceError: damaged, or a member that reaches outside.
    """
    found = _look(source, release, need)
    repo = cached_tree(release, found.key, need, found.entries)
    base = git(repo, "rev-parse", "HEAD").decode().strip()
    proof, identity = _proof(release, found, repo, str(source))
    return SourceTree(release, repo, base, found.kind, identity, proof)
