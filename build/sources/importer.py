"""Import files into a git repository: the same files give the same commit on every machine and from every origin."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Callable, Generator, Iterator
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from build.errors import SourceError
from build.git import SYMLINK, Git, init
from build.paths import cache
from build.releases import Release
from build.seals import built
from build.sources.tree import TreePurpose

#: Folders for an overlay: the code of torch's own libraries, the CMake files that name their macros, and the programs
#: that generate code.
#: Files of the top level are imported as well, except dot files, which are for the forge.
OVERLAY_PATHS = ("aten", "c10", "caffe2", "cmake", "tools", "torch", "torchgen")

#: Increased when an import gives another commit for the same files.
FORMAT = "1"


#: A stream of files: path from the top of the tree, git mode (`100644`, `100755`, `120000`), content. Closing it closes
#: its source (a process, an archive).
SourceFiles: TypeAlias = Generator[tuple[str, str, bytes], None, None]
#: Returns the files of a source; it gets a temporary folder, which is removed after the import.
Reader: TypeAlias = Callable[[Path], SourceFiles]


def wanted(path: str, need: TreePurpose) -> bool:
    if need is TreePurpose.FULL:
        return True
    top, slash, _ = path.partition("/")
    return top in OVERLAY_PATHS if slash else not top.startswith(".")


def check_inside(path: str, target: bytes | None = None) -> None:
    """Raise SourceError for a path, or a symbolic link's target, outside of the tree or in a `.git` folder."""
    pure = PurePosixPath(path)
    bad = pure.is_absolute() or ".." in pure.parts or any(part.lower() == ".git" for part in pure.parts)
    if target is not None and not bad:
        depth = len(pure.parts) - 1
        for part in PurePosixPath(os.fsdecode(target)).parts:
            depth += -1 if part == ".." else 1
            bad = bad or depth < 0 or part == "/"
    if bad:
        link = f" -> {target.decode('utf-8', 'replace')}" if target is not None else ""
        what = f"the source has a member that reaches outside: {path}{link}"
        raise SourceError(what, remedy="get the source from its publisher")


def new_repository(folder: Path) -> Git:
    """Make an empty repository whose work tree is exact to the byte, for any settings of git."""
    git = init(folder)
    for key, value in (("core.autocrlf", "false"), ("core.symlinks", "true"), ("gc.auto", "0")):
        git.out("config", key, value)
    info = folder / ".git" / "info"
    info.mkdir(exist_ok=True)
    # Stronger than any .gitattributes of the tree.
    (info / "attributes").write_text("* -text -ident -filter -working-tree-encoding\n")
    return git


def _import(folder: Path, read: Reader, release: Release, need: TreePurpose) -> None:
    git = new_repository(folder)
    # In the new folder: what a killed run leaves of a download is removed with it.
    scratch = tempfile.TemporaryDirectory(prefix="source-", dir=folder / ".git")
    with scratch as name, contextlib.closing(read(Path(name))) as stream:
        git.fast_import(_checked(stream, need), f"PyTorch {release.version}\n".encode(), release.tag)
    if not git.files("main", "torch/csrc"):
        cause = "another project, or an archive without the one top folder that source archives have"
        raise SourceError("the source is not PyTorch's: it has no torch/csrc", cause=cause)
    git.out("reset", "-q", "--hard", "main")


def _checked(entries: SourceFiles, need: TreePurpose) -> Iterator[tuple[str, str, bytes]]:
    for path, mode, data in entries:
        if wanted(path, need):
            check_inside(path, data if mode == SYMLINK else None)
            yield path, mode, data


def cache_path(release: Release, key: str, need: TreePurpose) -> Path:
    identity = hashlib.sha256("\0".join([FORMAT, need.value, *OVERLAY_PATHS, key]).encode()).hexdigest()
    return cache("sources") / f"{release.version}-{identity[:16]}"


def cached_tree(release: Release, key: str, need: TreePurpose, read: Reader) -> Path:
    """Return the cached repository for `key`, importing it on the first call, and again when it is damaged.

    Args:
        release: gives the commit its tag and version.
        key: identifies the content: a commit, a digest, a fingerprint.
        need: selects the files.
        read: returns the files; called only if the cache does not have them.

    Raises:
        SourceError: the import failed, or a member reaches outside.
    """
    purpose = f"the source of PyTorch {release.version}"
    return built(cache_path(release, key, need), purpose, lambda part: _import(part, read, release, need))
