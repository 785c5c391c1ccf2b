"""The user's patches, and the label that their wheel gets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec

from build.errors import PatchError, UsageError
from build.git import Git
from build.releases import Release
from build.series import patchfile
from build.series.commits import export_commit
from build.series.model import FileChange, PatchFile
from build.sources import TreePurpose
from build.sources.importer import wanted

#: A local version of PEP 440, as it is written in the name of a wheel.
_LABEL = re.compile(r"[a-z0-9]+(?:[._-][a-z0-9]+)*", re.IGNORECASE)
_OURS = re.compile(r"mw\d+", re.IGNORECASE)


def labelled(release: Release, label: str) -> Release:
    """Return the entry of a release for the user's patches: wheels of another version, and none of our units.

    Raises:
        UsageError: the label is missing, is no local version of PEP 440, or is that of this project's own wheels.
    """
    if not _LABEL.fullmatch(label) or _OURS.fullmatch(label):
        what = f"--label {label!r} cannot be part of a version" if label else "--patches needs a --label"
        cause = "letters and digits, parted by dots; this project's own wheels have mw1 and the like"
        remedy = f"choose another, e.g. --label fix1 for torch {release.version}+{release.wheel.local}.fix1"
        raise UsageError(what, cause=cause, remedy=remedy)
    plain = re.sub("[_-]", ".", label.lower())
    return msgspec.structs.replace(release, label=plain, series=(), extra_units=())


def load(path: Path) -> tuple[PatchFile, ...]:
    """Read a patch file, or the `*.patch` and `*.diff` files of a folder in the order of their names.

    Raises:
        UsageError: there is no such file, or no patch in the folder.
        PatchError: a file is not a patch, or changes nothing.
    """
    if not path.exists():
        what = f"--patches {path.absolute()}: no such file or folder"
        raise UsageError(what, remedy="give a patch file or a folder of them")
    files = [path]
    if path.is_dir():
        files = sorted(item for item in path.iterdir() if item.suffix in (".patch", ".diff"))
    if not files:
        raise UsageError(f"--patches {path} has no *.patch and no *.diff file", remedy="name the folder that has them")
    return _some(tuple(patchfile.read(item) for item in files), str(path))


def from_branch(named: str, release: Release) -> tuple[PatchFile, ...]:
    """Return the commits since the release's tag of a branch, given as PATH@REV, as one patch each.

    Raises:
        UsageError: not PATH@REV, no repository, or no release tag in it.
        PatchError: the branch has no commits of its own.
    """
    path, _, revision = named.rpartition("@")
    if not path or not (Path(path) / ".git").exists():
        raise UsageError(f"--from-branch {named} is not PATH@REV", remedy="give a checkout and a branch: ~/pytorch@fix")
    git = Git(Path(path))
    head, base = git.resolve(revision), git.resolve(release.tag)
    commits = git.out("rev-list", "--reverse", "--no-merges", f"{base}..{head}").decode().split()
    texts = [export_commit(git, commit) for commit in commits]
    names = [f"{number:04}-{commit[:12]}.patch" for number, commit in enumerate(commits, 1)]
    return _some(tuple(map(patchfile.parse, texts, names)), named)


@contextmanager
def applying(tree: Path, path: Path | None, branch: str) -> Iterator[None]:
    """Say in errors of the block how patches that do not apply can be ported; `tree` is the release's."""
    try:
        yield
    except PatchError as error:
        if not path and not branch:
            raise
        folder = path if path and path.is_dir() else path.parent if path else None
        port = f"regenerate-patch -- --patches {folder} --from-tree CHECKOUT@TAG --to-tree {tree} --out ported"
        ported = f"port it from the release that it is for, CHECKOUT@TAG:\npython3 noxfile.py -s {port}"
        remedy = ported if folder else "rebase the branch on the release's tag"
        raise type(error)(error.what, cause=error.cause, remedy=remedy) from None


def _known(change: FileChange) -> bool:
    """Return whether an imported tree may have a file that is changed, before or after."""
    return any(wanted(path, TreePurpose.OVERLAY) for path in (change.old_path, change.new_path) if path)


def _narrowed(patch: PatchFile) -> PatchFile:
    """Set aside the changes of files that no imported tree has, such as tests: they could not be applied."""
    outside = tuple(change for change in patch.changes if not _known(change))
    return replace(patch, changes=tuple(filter(_known, patch.changes)), outside=outside)


def outside(patches: Iterable[PatchFile]) -> frozenset[str]:
    """Return the files that patches change and that imported trees do not have."""
    every = (change for patch in patches for change in patch.outside)
    return frozenset(path for change in every for path in (change.old_path, change.new_path) if path)


def _some(patches: tuple[PatchFile, ...], origin: str) -> tuple[PatchFile, ...]:
    """Return the patches, without what no imported tree has; raise PatchError if they change nothing at all."""
    if not any(patch.changes for patch in patches):
        raise PatchError(f"{origin} changes no file", cause="the patch is empty, or the branch is the release's tag")
    return tuple(map(_narrowed, patches))


def chosen(release: Release, path: Path | None, branch: str) -> tuple[PatchFile, ...]:
    """Return the patches that the user names, by `--patches` or by `--from-branch`, which exclude each other."""
    if (path is None) == (not branch):
        raise UsageError("give one of --patches and --from-branch", remedy="--patches FILE, or --from-branch PATH@REV")
    return load(path) if path is not None else from_branch(branch, release)
