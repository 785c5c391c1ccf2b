"""A source tree, of any origin."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from build.releases import Release


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
