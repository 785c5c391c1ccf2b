"""Checkouts: repositories that share the objects of another one, and folders that are replaced in one step."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from build.errors import SourceError
from build.git import Git, init
from build.paths import built_beside

#: What a clone without all objects needs to fetch a missing one later.
_PROMISOR = r"^(remote\.|extensions\.partialclone)"


def new_repository(source: Git, target: Path) -> Git:
    """Make a repository in the empty folder `target` that has every object of `source`, by hard links where possible.

    The source is only read. The new repository has no commit checked out and no branch.
    """
    target.mkdir(parents=True, exist_ok=True)
    # The objects are the source's, so the format is, too.
    git = init(target, "patched", object_format=source.line("rev-parse", "--show-object-format"))
    inside = target / ".git"
    common = Path(source.line("rev-parse", "--path-format=absolute", "--git-common-dir"))
    _share_objects(common / "objects", inside / "objects")
    if (common / "shallow").is_file():
        shutil.copyfile(common / "shallow", inside / "shallow")
    _copy_promisor(source, git)
    return git


def _share_objects(source: Path, target: Path) -> None:
    """Hard-link the object store; across file systems, refer to it instead."""
    # The object stores that the source itself borrows from.
    listing = source / "info" / "alternates"
    lines = listing.read_text(encoding="utf-8").splitlines() if listing.is_file() else []
    borrowed = [str((source / line).resolve()) for line in lines if line and not line.startswith("#")]
    try:
        for path in source.rglob("*"):
            if path.is_file() and path.parent.name != "info" and path.suffix != ".lock":
                link = target / path.relative_to(source)
                link.parent.mkdir(parents=True, exist_ok=True)
                os.link(path, link)
    except OSError as error:
        if error.errno not in {errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP}:
            raise
        borrowed.append(str(source))
    if borrowed:
        info = target / "info"
        info.mkdir(exist_ok=True)
        (info / "alternates").write_bytes("".join(f"{line}\n" for line in borrowed).encode())


def _copy_promisor(source: Git, target: Git) -> None:
    """Let the copy of a partial clone fetch missing objects from the source's remote."""
    if source.call("config", "--get", "extensions.partialClone").returncode:
        return
    target.out("config", "core.repositoryFormatVersion", "1")
    listing = source.out("config", "--local", "-z", "--get-regexp", _PROMISOR)
    for record in listing.split(b"\0")[:-1]:
        key, _, value = os.fsdecode(record).partition("\n")
        target.out("config", "--add", key, value)


@contextlib.contextmanager
def replacing(final: Path) -> Iterator[Path]:
    """Yield an empty folder, which replaces `final` when the block succeeds; call it with the lock on `final` held.

    Raises:
        SourceError: `final` is something else than a folder: a person's, since no run makes such.
    """
    if final.is_symlink() or (final.exists() and not final.is_dir()):
        raise SourceError(f"{final} is in the way: it is not a folder", remedy="give another folder")
    with built_beside(final) as part:
        yield part
