"""A git repository of its own over another one's objects: nothing is ever written into the source."""

from __future__ import annotations

import errno
import glob
import os
import shutil
from pathlib import Path

from build.errors import SourceError
from build.series.git import Git
from build.signals import deferred_signals, runs

#: What a clone without all objects needs to fetch a missing one later.
_PROMISOR = r"^(remote\.|extensions\.partialclone)"


def new_repository(source: Git, target: Path) -> Git:
    """Make a repository in `target` that has every object of `source`, by hard links where possible.

    Args:
        source: the repository to share objects with; it is only read.
        target: a folder that does not exist yet.

    Returns:
        git in the new repository, which has no commit checked out and no branch.
    """
    target.mkdir(parents=True)
    git = Git(target)
    # Of the same format, whatever the user prefers for new ones: the objects are the source's own.
    kind = source.line("rev-parse", "--show-object-format")
    git.out("init", "--quiet", "--initial-branch=patched", "--template=", f"--object-format={kind}")
    inside = git.git_dir()
    common = Path(source.line("rev-parse", "--path-format=absolute", "--git-common-dir"))
    _share_objects(common / "objects", inside / "objects")
    if (common / "shallow").is_file():
        shutil.copyfile(common / "shallow", inside / "shallow")
    _copy_promisor(source, git)
    _copy_sparse(source, git)
    return git


def _share_objects(source: Path, target: Path) -> None:
    """Hard-link the object store; across file systems refer to it instead."""
    borrowed = [str(path) for path in _alternates(source)]
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


def _alternates(objects: Path) -> list[Path]:
    """Return the object stores that `objects` itself borrows from, absolute."""
    listing = objects / "info" / "alternates"
    lines = listing.read_text(encoding="utf-8").splitlines() if listing.is_file() else []
    return [(objects / line).resolve() for line in lines if line and not line.startswith("#")]


def _copy_promisor(source: Git, target: Git) -> None:
    """Let a partial clone's copy fetch what is missing from where the source would."""
    if source.call("config", "--get", "extensions.partialClone").returncode:
        return
    target.out("config", "core.repositoryFormatVersion", "1")
    listing = source.out("config", "--local", "-z", "--get-regexp", _PROMISOR)
    for record in listing.split(b"\0")[:-1]:
        key, _, value = os.fsdecode(record).partition("\n")
        target.out("config", "--add", key, value)


def _copy_sparse(source: Git, target: Git) -> None:
    """Check out only the folders that a sparse source has."""
    patterns = Path(source.line("rev-parse", "--path-format=absolute", "--git-path", "info/sparse-checkout"))
    if source.call("config", "--type=bool", "--get", "core.sparseCheckout").stdout.strip() != b"true":
        return
    if patterns.is_file():
        copy = target.git_dir() / "info" / "sparse-checkout"
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(patterns, copy)
        target.out("config", "core.sparseCheckout", "true")
        cone = source.call("config", "--type=bool", "--get", "core.sparseCheckoutCone").stdout.strip()
        target.out("config", "core.sparseCheckoutCone", cone.decode() or "false")


def is_dirty(checkout: Path) -> list[str]:
    """Return the paths with changes that no commit has."""
    listing = Git(checkout).out("status", "--porcelain", "-z", "--untracked-files=normal")
    return [os.fsdecode(record[3:]) for record in listing.split(b"\0")[:-1] if record[2:3] == b" "]


def replace_folder(new: Path, final: Path) -> None:
    """Put the finished folder `new` in the place of `final`.

    An interruption leaves the old one or the new one. A kill may leave the old one as `.NAME.old-PID`, which the next
    call removes, as it does what an interrupted removal left.

    Raises:
        SourceError: `final` exists and is not a folder.
    """
    if not final.exists():
        new.rename(final)
        _sweep(final)
        return
    if final.is_symlink() or not final.is_dir():
        raise SourceError(f"{final} is in the way: it is not a folder", remedy="give another folder")
    _sweep(final)
    old = _aside(final)
    with deferred_signals():
        final.rename(old)
        try:
            new.rename(final)
        except BaseException:
            old.rename(final)
            raise
    shutil.rmtree(old)


def remove_folder(final: Path) -> None:
    """Remove a folder as one step: an interruption leaves nothing of it under its name."""
    _sweep(final)
    if final.exists():
        old = _aside(final)
        final.rename(old)
        shutil.rmtree(old, ignore_errors=True)


def _aside(final: Path) -> Path:
    """Return where this process puts a folder that is to go."""
    return final.with_name(f".{final.name}.old-{os.getpid()}")


def _sweep(final: Path) -> None:
    """Remove what runs that are no more have put aside and not removed; `final` must be in place or not wanted."""
    for old in final.parent.glob(f".{glob.escape(final.name)}.old-*"):
        if not _other_runs(old.name.rpartition("-")[2]):
            shutil.rmtree(old, ignore_errors=True)


def _other_runs(pid: str) -> bool:
    """Whether another process of this id runs; what has no id that we have given is left alone."""
    return pid != str(os.getpid()) and (not pid.isdecimal() or runs(int(pid)))
