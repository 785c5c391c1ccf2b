"""Read source trees: tarballs, folders and git repositories, each as a stream of files."""

from __future__ import annotations

import os
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path

from build.errors import SourceError
from build.git import SUBMODULE, SYMLINK, Git, Settings
from build.sources.importer import SourceFiles, check_inside, wanted
from build.sources.tree import TreePurpose


def _without_top(name: str) -> str:
    """Return a member's path without the one top folder of source tarballs."""
    return name.removeprefix("./").partition("/")[2]


def _tar_entry(archive: tarfile.TarFile, member: tarfile.TarInfo) -> tuple[str, str, bytes] | None:
    path = _without_top(member.name)
    if member.issym():
        return path, SYMLINK, os.fsencode(member.linkname)
    if member.isfile() or member.islnk():
        stream = archive.extractfile(member)
        if stream is None:
            raise SourceError(f"{member.name}: the target of this hard link is missing")
        return path, "100755" if member.mode & 0o100 else "100644", stream.read()
    if not member.isdir():
        raise SourceError(f"the archive has a member that is not a file: {member.name}")
    return None


def tarball(path: Path, need: TreePurpose) -> SourceFiles:
    """Yield the files of a tarball with one top folder; all members are checked, wanted or not.

    Raises:
        SourceError: damaged, not a tarball, or with members that reach outside.
    """
    try:
        with tarfile.open(path) as archive:
            for member in archive:
                check_inside(member.name, os.fsencode(member.linkname) if member.issym() else None)
                if member.islnk():
                    check_inside(member.linkname)
                if wanted(_without_top(member.name), need) or member.isdir():
                    entry = _tar_entry(archive, member)
                    if entry and entry[0]:
                        yield entry
    except (tarfile.TarError, EOFError, OSError) as error:
        what = f"{path} cannot be read as a tarball: {error}"
        raise SourceError(what, remedy="get it again from its publisher") from None


def folder_files(top: Path, need: TreePurpose) -> Iterator[tuple[str, os.stat_result]]:
    """Yield path and status of the wanted files below `top`, sorted, without `.git`."""
    for folder, subfolders, names in os.walk(top):
        relative = os.path.relpath(folder, top)
        prefix = "" if relative == "." else relative + "/"
        links = [name for name in subfolders if os.path.islink(os.path.join(folder, name))]  # noqa: PTH114, PTH118
        real = sorted(set(subfolders) - {".git", *links})
        subfolders[:] = [name for name in real if wanted(prefix + name + "/x", need)]
        for name in sorted([*names, *links]):
            if name != ".git" and wanted(prefix + name, need):
                yield prefix + name, os.lstat(os.path.join(folder, name))  # noqa: PTH118


def folder(top: Path, need: TreePurpose) -> SourceFiles:
    for path, status in folder_files(top, need):
        if stat.S_ISLNK(status.st_mode):
            yield path, SYMLINK, os.fsencode((top / path).readlink())
        elif stat.S_ISREG(status.st_mode):
            mode = "100755" if status.st_mode & stat.S_IXUSR else "100644"
            yield path, mode, (top / path).read_bytes()


def repository(repo: Path, commit: str, need: TreePurpose) -> SourceFiles:
    """Yield the files of one commit of a repository, bare or not, which is only read; submodules are left out.

    Raises:
        SourceError: a wanted blob is missing (a partial clone).
    """
    # A partial clone fetches missing objects from its remote, which may need the user's settings.
    git = Git(repo, settings=Settings.REMOTE)
    files = [item for item in git.files(commit).values() if item.mode != SUBMODULE and wanted(item.path, need)]
    contents = git.blobs([item.blob for item in files])
    for item in files:
        try:
            data, why = next(contents), ""
        except SourceError as error:
            data, why = None, f": {error.cause}"
        if data is None:
            what = f"{repo} lacks the content of {item.path} ({item.blob})"
            cause, remedy = f"a partial or damaged clone{why}", "fetch it there, or name another source"
            raise SourceError(what, cause=cause, remedy=remedy)
        yield item.path, item.mode, data
