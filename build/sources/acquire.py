"""Get a source tree: what the user names, else upstream git, else Debian."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from build.console import note, step
from build.errors import DigestMismatchError, EnvironmentUnfitError, SourceError
from build.git import Git
from build.releases import Release
from build.seals import intact
from build.sources import debian, upstream
from build.sources.local import acquire_local
from build.sources.tree import Proof, SourceKind, SourceTree, TreePurpose

_Locate = Callable[[Release, TreePurpose], "Path | None"]
_Fetch = Callable[[Release, TreePurpose], Path]
#: Origins in the order they are tried: where each keeps its tree, and how it gets it.
_ORIGINS: dict[SourceKind, tuple[_Locate, _Fetch]] = {
    SourceKind.GIT: (upstream.path, upstream.fetch),
    SourceKind.DEBIAN: (debian.path, debian.fetch),
}


def _tree(release: Release, repo: Path, kind: SourceKind, *passed_over: str) -> SourceTree:
    base, proof, identity = Git(repo).resolve("HEAD"), Proof.COMMIT, f"commit {release.commit}"
    if kind is SourceKind.DEBIAN and release.debian:
        identity = f"{release.debian.package} {release.debian.version}, sha256 {release.debian.orig_sha256}"
        proof = Proof.DIGEST
    return SourceTree(release, repo, base, kind, identity, proof, passed_over)


def _cached(release: Release, need: TreePurpose, usable: Callable[[Path], bool]) -> tuple[SourceKind, Path] | None:
    places = ((kind, path(release, need)) for kind, (path, _) in _ORIGINS.items())
    return next(((kind, repo) for kind, repo in places if repo is not None and usable(repo)), None)


def cached_folder(release: Release, need: TreePurpose) -> Path | None:
    """Return the tree of an earlier run, without checking it."""
    found = _cached(release, need, Path.is_dir)
    return found[1] if found else None


def cached_tree(release: Release, need: TreePurpose) -> SourceTree | None:
    """Return an intact tree of an earlier run, without using the network."""
    found = _cached(release, need, intact)
    return _tree(release, found[1], found[0]) if found else None


def acquire(release: Release, source: Path | None = None, *, need: TreePurpose = TreePurpose.OVERLAY) -> SourceTree:
    """Return the source tree of a release: from `source` only, if given, else from the cache or an origin.

    `source` is what the user named with `--source`: a git repository, `PATH@REV`, a tarball or a folder.

    Raises:
        DigestMismatchError: an origin has another commit or archive than the pinned one. Other origins are not tried
            then: a person has to look at a moved tag.
        SourceError: every origin failed; each is named with its reason.
        UsageError: `source` does not exist.
    """
    if source is not None:
        tree = acquire_local(release, source, need)
        step(f"source: {tree.kind.value} {source} ({tree.identity}; {tree.proof.value})")
        return tree
    ready = cached_tree(release, need)
    if ready is not None:
        step(f"source: {ready.kind.value}, cached ({ready.identity}; {ready.proof.value})")
        return ready
    passed_over: list[str] = []
    for kind, (_, fetch) in _ORIGINS.items():
        try:
            repo = fetch(release, need)
        except DigestMismatchError:
            raise
        except (SourceError, EnvironmentUnfitError) as error:
            lines = [line.strip() for line in error.cause.splitlines() if line.strip()]
            decisive = [line for line in lines if line.startswith(("fatal:", "E:"))] or lines[-1:]
            passed_over.append(": ".join([kind.value, error.what, *decisive[:1]]))
            note(f"skipped {passed_over[-1]}")
            continue
        tree = _tree(release, repo, kind, *passed_over)
        step(f"source: {kind.value} ({tree.identity}; {tree.proof.value})")
        return tree
    what = f"the source of PyTorch {release.version} is not available from any origin"
    remedy = f"name one: --source PATH (a checkout at {release.tag}, a tarball, a folder), or connect to a network"
    raise SourceError(what, cause="\n".join(passed_over), remedy=remedy)
