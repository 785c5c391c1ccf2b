"""Check that source tree and wheel belong together, by comparing their shared headers byte for byte."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from build.errors import DigestMismatchError
from build.seals import sha256_of
from build.sources.tree import Proof, SourceTree

#: Where a folder of the wheel's `torch/include` is in the source tree; others have the same name in both.
_MOVED = {"ATen": "aten/src/ATen", "TH": "aten/src/TH", "THC": "aten/src/THC"}
_HEADERS = (".h", ".hpp", ".cuh", ".inc")
_SHOWN = 20


@dataclass(frozen=True, slots=True)
class HeaderDifference:
    """A header whose bytes differ between wheel and tree (SHA-256 of both)."""

    path: str
    wheel: str
    tree: str


@dataclass(frozen=True, slots=True)
class HeaderComparison:
    """The comparison of the wheel's headers with the tree's; paths are relative to `torch/include`.

    Attributes:
        equal: number of shared headers with the same bytes.
        generated: headers of the wheel that the tree lacks: made by the build, or of a third party.
        differing: shared headers that differ, but are not included by compiled code (empty when all count).
    """

    equal: int
    generated: tuple[str, ...]
    differing: tuple[HeaderDifference, ...]


def tree_path(header: str) -> str:
    top, slash, rest = header.partition("/")
    return _MOVED.get(top, top) + slash + rest


def _headers(include_dir: Path) -> list[str]:
    files = (path for path in include_dir.rglob("*") if path.suffix in _HEADERS and path.is_file())
    return sorted(path.relative_to(include_dir).as_posix() for path in files)


def _compare(include_dir: Path, repo: Path) -> tuple[int, list[str], list[HeaderDifference]]:
    equal, generated, differing = 0, [], []
    for header in _headers(include_dir):
        ours, theirs = repo / tree_path(header), include_dir / header
        if not ours.is_file():
            generated.append(header)
        elif ours.read_bytes() == theirs.read_bytes():
            equal += 1
        else:
            differing.append(HeaderDifference(header, sha256_of(theirs), sha256_of(ours)))
    return equal, generated, differing


def _refuse(tree: SourceTree, decisive: list[HeaderDifference], equal: int) -> None:
    rows = [f"{item.path}\n  wheel {item.wheel}\n  tree  {item.tree}" for item in decisive[:_SHOWN]]
    if len(decisive) > _SHOWN:
        rows.append(f"… and {len(decisive) - _SHOWN} more")
    raise DigestMismatchError(
        f"source tree and wheel of PyTorch {tree.release.version} do not belong together: "
        f"{len(decisive)} headers differ, {equal} are equal\n" + "\n".join(rows),
        cause=f"the tree ({tree.kind.value}, {tree.identity}) is another release or has changes of its own",
        remedy=f"use the source of {tree.release.tag}; nothing was built",
    )


def check_headers(tree: SourceTree, include_dir: Path, only: frozenset[str] | None = None) -> HeaderComparison:
    """Compare all headers of the wheel (`include_dir` is its `torch/include`) with the unpatched tree's.

    Only the headers in `only` decide, relative to `include_dir`; default: all. The others are listed if they differ.

    Raises:
        DigestMismatchError: a header that decides differs, or there are no shared headers.
    """
    equal, generated, differing = _compare(include_dir, tree.repo)
    decisive = [item for item in differing if only is None or item.path in only]
    if decisive:
        _refuse(tree, decisive, equal)
    if not equal:
        raise DigestMismatchError(
            f"source tree and wheel of PyTorch {tree.release.version} share no header",
            cause=f"{include_dir} is not the include folder of a torch wheel, or {tree.repo} no PyTorch source",
        )
    return HeaderComparison(equal, tuple(generated), tuple(item for item in differing if item not in decisive))


def _check_pinned(tree: SourceTree, read: frozenset[str]) -> None:
    """Refuse files of the tree that were compiled although they are not pinned."""
    if unpinned := sorted(read - set(tree.release.blobs)):
        raise DigestMismatchError(
            f"{len(unpinned)} files of the tree were compiled, but are not pinned:\n" + "\n".join(unpinned),
            cause=f"the tree is known by {len(tree.release.blobs)} files only ({tree.identity})",
            remedy=f"use the source of {tree.release.tag} itself, or pin their blob ids in build/releases.toml",
        )


def check_belongs(tree: SourceTree, include_dir: Path, read: frozenset[str]) -> HeaderComparison:
    """Check that tree and wheel belong together, as strictly as the tree's proof requires.

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
    _check_pinned(tree, read - {tree_path(name) for name in shared})
    return found
