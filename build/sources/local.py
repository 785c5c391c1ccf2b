"""Read what the user names with `--source`: a git repository (at a revision), a tarball, or a folder."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from build.console import note
from build.errors import DigestMismatchError, SourceError, UsageError
from build.git import Git, Settings, repository, split_revision
from build.releases import Release
from build.seals import sha256_of
from build.sources import readers
from build.sources.importer import Reader, cached_tree
from build.sources.tree import Proof, SourceKind, SourceTree, TreePurpose


@dataclass(frozen=True, slots=True)
class _Found:
    """A `--source`: its kind, what identifies it, and how to read it."""

    kind: SourceKind
    key: str
    shown: str
    read: Reader


def _changed(path: Path) -> None:
    """Print a note if a work tree has changes, since its commit is used.

    The tree may be another user's. It is not changed, not even its index, and only the user's settings apply: with
    `safe.directory=*`, git would run the filters that the tree names.
    """
    if not (path / ".git").exists():
        return
    options = ("--porcelain", "--untracked-files=no", "--ignore-submodules=all")
    done = Git(path, settings=Settings.USER).call("status", *options, env={"GIT_OPTIONAL_LOCKS": "0"})
    if done.returncode:
        note(f"{path}: its commit is used, without uncommitted changes; git cannot list these: {done.tail}")
    elif done.stdout:
        note(f"{path}: {len(done.stdout.splitlines())} uncommitted changes are not used, only its commit")


def _repository(git: Git, revision: str | None, release: Release, need: TreePurpose) -> _Found:
    try:
        commit = git.resolve(revision or "HEAD")
    except SourceError as error:
        remedy = f"name one that it has: --source {git.folder}@{release.tag}"
        raise UsageError(error.what, cause=error.cause, remedy=remedy) from None
    if revision is None:
        _changed(git.folder)
    read: Reader = lambda _: readers.repository(git.folder, commit, need)  # noqa: E731
    return _Found(SourceKind.CHECKOUT, f"git {commit}", f"commit {commit}", read)


def _look(source: Path, release: Release, need: TreePurpose) -> _Found:
    path, revision = split_revision(str(source))
    if not path.exists():
        raise UsageError(f"--source {source}: the file or folder does not exist")
    if path.is_dir() and (git := repository(path)) is not None:
        return _repository(git, revision, release, need)
    if revision is not None:
        raise UsageError(f"--source {source}: {path} is not a git repository, so it has no revisions")
    if path.is_dir():
        # Identify a folder by names, sizes and times: reading all files would take as long as the import.
        fingerprint = hashlib.sha256(str(path.resolve()).encode())
        for name, status in readers.folder_files(path, need):
            # ctime also shows an edit that keeps the size and sets mtime back.
            values = (status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            fingerprint.update("\0".join([name, *map(str, values)]).encode("utf-8", "surrogateescape") + b"\n")
        return _Found(SourceKind.FOLDER, f"folder {fingerprint.hexdigest()}", "", lambda _: readers.folder(path, need))
    digest = f"sha256 {sha256_of(path)}"
    return _Found(SourceKind.TARBALL, digest, digest, lambda _: readers.tarball(path, need))


def check_blobs(release: Release, repo: Path, where: str) -> None:
    """Compare the files that the series patch with their pinned blob ids.

    Raises:
        DigestMismatchError: one differs or is missing; both ids of each are shown.
    """
    found = {path: entry.blob for path, entry in Git(repo).files("HEAD", *release.blobs).items()}
    wrong = [path for path in release.blobs if found.get(path) != release.blobs[path]]
    if wrong:
        rows = [f"{path}\n  pinned {release.blobs[path]}\n  found  {found.get(path, '(missing)')}" for path in wrong]
        head = f"{where} is not PyTorch {release.version}: {len(wrong)} of {len(release.blobs)} pinned files differ"
        remedy = f"name the release itself: --source PATH@{release.tag}, or its tarball"
        raise DigestMismatchError("\n".join([head, *rows]), remedy=remedy)


def _proof(release: Release, found: _Found, repo: Path, where: str) -> tuple[Proof, str]:
    if found.key == f"git {release.commit}":
        return Proof.COMMIT, found.shown
    if release.debian and found.key == f"sha256 {release.debian.orig_sha256}":
        return Proof.DIGEST, found.shown
    shown = found.shown or f"tree {Git(repo).resolve('HEAD', 'tree')}"
    if release.blobs:
        check_blobs(release, repo, where)
        return Proof.BLOBS, f"{shown}; {len(release.blobs)} files by blob id"
    return Proof.NONE, shown


def acquire_local(release: Release, source: Path, need: TreePurpose) -> SourceTree:
    """Return the tree of `source`: `PATH` or, for a git repository, `PATH@REV` (default: its HEAD).

    Raises:
        UsageError: the path or revision does not exist.
        DigestMismatchError: it is not the release.
        SourceError: damaged, or a member that reaches outside.
    """
    found = _look(source, release, need)
    repo = cached_tree(release, found.key, need, found.read)
    base = Git(repo).resolve("HEAD")
    proof, identity = _proof(release, found, repo, str(source))
    return SourceTree(release, repo, base, found.kind, identity, proof)
