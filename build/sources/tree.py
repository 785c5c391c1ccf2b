"""A source tree, of any origin, and whether it belongs to a wheel, by their shared headers byte for byte."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from build.errors import DigestMismatchError
from build.releases import Release
from build.seals import sha256_of


class SourceKind(Enum):
    """Where a tree came from."""

    GIT = "upstream git"
    DEBIAN = "Debian source package"
    CHECKOUT = "local git repository"
    TARBALL = "local tarball"
    FOLDER = "local folder"


class TreePurpose(Enum):
    """Purposes of a tree."""

    OVERLAY = "overlay"
    FULL = "full build"


class Proof(Enum):
    """Proofs that the tree is the release's."""

    COMMIT = "its commit is the pinned one"
    DIGEST = "its archive has the pinned SHA-256"
    BLOBS = "the files that the series patch have the pinned blob ids"
    NONE = "nothing is pinned for it: only its headers are compared"


@dataclass(frozen=True, slots=True)
class SourceTree:
    """A release's source as a git repository with a work tree, shared by all runs: clone it, never change it.

    Attributes:
        release: the release it is the source of.
        repo: the repository; HEAD is `base`, tagged with the release's tag. Its work tree is exact to the byte
            (no line-ending conversion). For `TreePurpose.OVERLAY` it holds `importer.OVERLAY_PATHS`.
        base: commit id of HEAD. It depends on the files alone, not on when or where they were imported; with
            `TreePurpose.FULL` it is upstream's own commit.
        kind: where it came from.
        identity: what was compared, for messages and for `build.json`.
        proof: how it is known to be the release's.
        passed_over: the origins tried before, each with the reason why it was not used.
    """

    release: Release
    repo: Path
    base: str
    kind: SourceKind
    identity: str
    proof: Proof
    passed_over: tuple[str, ...] = ()


#: Where a folder of the wheel's `torch/include` is in the source tree; others have the same name in both.
_MOVED = {"ATen": "aten/src/ATen", "TH": "aten/src/TH", "THC": "aten/src/THC"}
_HEADERS = (".h", ".hpp", ".cuh", ".inc")
_SHOWN = 20


def tree_path(header: str) -> str:
    top, slash, rest = header.partition("/")
    return _MOVED.get(top, top) + slash + rest


def _headers(include_dir: Path) -> list[str]:
    files = (path for path in include_dir.rglob("*") if path.suffix in _HEADERS and path.is_file())
    return sorted(path.relative_to(include_dir).as_posix() for path in files)


def _refuse(tree: SourceTree, include_dir: Path, decisive: list[str], equal: int) -> None:
    rows = []
    for name in decisive[:_SHOWN]:
        theirs, ours = sha256_of(include_dir / name), sha256_of(tree.repo / tree_path(name))
        rows.append(f"{name}\n  wheel {theirs}\n  tree  {ours}")
    if len(decisive) > _SHOWN:
        rows.append(f"… and {len(decisive) - _SHOWN} more")
    raise DigestMismatchError(
        f"source tree and wheel of PyTorch {tree.release.version} do not belong together: "
        f"{len(decisive)} headers differ, {equal} are equal\n" + "\n".join(rows),
        cause=f"the tree ({tree.kind.value}, {tree.identity}) is another release or has changes of its own",
        remedy=f"use the source of {tree.release.tag}; nothing was built",
    )


def check_headers(tree: SourceTree, include_dir: Path, only: frozenset[str] | None = None) -> tuple[int, list[str]]:
    """Compare all headers of the wheel (`include_dir` is its `torch/include`) with the unpatched tree's.

    Only the headers in `only` decide, relative to `include_dir`; default: all. Returns how many shared headers have the
    same bytes, and those of the others that differ.

    Raises:
        DigestMismatchError: a header that decides differs, or there are no shared headers.
    """
    # Headers of the wheel that the tree lacks are made by the build, or of a third party.
    shared = [name for name in _headers(include_dir) if (tree.repo / tree_path(name)).is_file()]
    differing = [n for n in shared if (include_dir / n).read_bytes() != (tree.repo / tree_path(n)).read_bytes()]
    equal = len(shared) - len(differing)
    decisive = [name for name in differing if only is None or name in only]
    if decisive:
        _refuse(tree, include_dir, decisive, equal)
    if not equal:
        what = f"source tree {tree.repo} and wheel {include_dir} of PyTorch {tree.release.version} share no header"
        raise DigestMismatchError(what)
    return equal, [name for name in differing if name not in decisive]


def check_belongs(tree: SourceTree, include_dir: Path, read: frozenset[str]) -> tuple[int, list[str]]:
    """Check that tree and wheel belong together, as strictly as the tree's proof requires; see `check_headers`.

    The wheel's headers come first on the include path, and its digest is pinned: a header that the compiler read
    from the wheel is the release's. So a tree that is known by its patched files alone (`Proof.BLOBS`) may differ
    elsewhere, but every file that the compiler read *from the tree* must be pinned or equal to the wheel's copy.
    For any other proof, all shared headers must be equal.

    Args:
        tree: the source, unpatched.
        include_dir: the wheel's `torch/include`.
        read: files of the tree that the compiler read (units and headers), relative to the tree's top.

    Raises:
        DigestMismatchError: they do not belong together.
    """
    if tree.proof is not Proof.BLOBS:
        return check_headers(tree, include_dir)
    shared = frozenset(name for name in _headers(include_dir) if tree_path(name) in read)
    found = check_headers(tree, include_dir, shared)
    # Refuse files of the tree that were compiled although they are not pinned.
    if unpinned := sorted(read - {tree_path(name) for name in shared} - set(tree.release.blobs)):
        raise DigestMismatchError(
            f"{len(unpinned)} files of the tree were compiled, but are not pinned:\n" + "\n".join(unpinned),
            cause=f"the tree is known by {len(tree.release.blobs)} files only ({tree.identity})",
            remedy=f"use the source of {tree.release.tag} itself, or pin their blob ids in build/releases.toml",
        )
    return found
