"""Rebuild a source package's patch stack: upstream's tree, and one commit per patch of `debian/patches`."""

from __future__ import annotations

import contextlib
import hashlib
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from build import paths
from build.bench.real import archives
from build.bench.real.packages import Package, Source
from build.errors import PatchError, SourceError
from build.git import Git, init
from build.porting.quilt import Listed, read_series
from build.seals import built, read_record, write_record
from build.series.model import PatchFile
from build.series.patchfile import parse_raw, restrip
from build.sources.importer import SourceFile
from build.sources.readers import tarball
from build.sources.tree import TreePurpose

#: Increased when the same archives give another stack.
FORMAT = "2"
_RECORD = "stack.json"


class Applied(msgspec.Struct, frozen=True):
    """One patch of a stack, with the commits before and after it."""

    name: str
    before: str
    after: str


class Stack(msgspec.Struct, frozen=True):
    """A stack.

    Attributes:
        base: upstream's commit.
        released: when upstream made the release: the time of the newest file, in seconds.
        applied: the patches on it.
        failed: the patch that could not be applied, which ends the stack, and why; empty if all were.
    """

    base: str
    released: float
    applied: tuple[Applied, ...]
    failed: str = ""


def path(package: Package) -> Path:
    """Return the folder of a package's two stacks in the cache, which need not exist."""
    digests = [item.sha256 for item in package.archives]
    key = hashlib.sha256("\0".join([FORMAT, *digests]).encode()).hexdigest()
    return paths.cache("porting-bench", "stacks") / f"{package.name}-{key[:16]}"


def rebuild(package: Package) -> Path:
    """Return the folder with `old` and `new`, each a repository with its patches beside it; made on the first call.

    Raises:
        SourceError: a tarball cannot be read.
    """
    return built(path(package), f"the patch stacks of {package.title}", lambda part: _fill(part, package))


def stack_of(folder: Path) -> Stack:
    """Read one stack of a rebuilt package.

    Raises:
        SourceError: it is damaged.
    """
    found = read_record(folder / _RECORD, Stack)
    if found is None:
        raise SourceError(f"{folder / _RECORD} is damaged", remedy="remove the folder and run again")
    return found


def repository(folder: Path) -> Git:
    return Git(folder / "repo")


def patches_of(folder: Path) -> dict[str, PatchFile]:
    """Return the patches of a stack by name, without those that are malformed: nobody can port them."""
    applied = {item.name for item in stack_of(folder).applied}
    found = {}
    for item in _series(folder / "patches"):
        if item.name in applied:
            with contextlib.suppress(PatchError):
                raw = parse_raw((folder / "patches" / item.name).read_bytes(), item.name)
                found[item.name] = restrip(raw, 1 if item.strip is None else item.strip)
    return found


def _series(folder: Path) -> list[Listed]:
    return read_series(folder) if (folder / "series").is_file() else []


def _fill(part: Path, package: Package) -> None:
    for side, source in (("old", package.old), ("new", package.new)):
        (part / side / "repo").mkdir(parents=True)
        git = init(part / side / "repo", bare=True)
        with contextlib.closing(tarball(archives.place(source.orig.name), TreePurpose.FULL)) as stream:
            git.fast_import(_files(stream), f"{package.name} {source.version}\n".encode(), "upstream")
        _extract(source, part / side / "patches")
        write_record(part / side / _RECORD, _apply(git, part / side / "patches", _newest(source)))


def _files(stream: Iterator[SourceFile]) -> Iterator[tuple[str, str, bytes]]:
    for item in stream:
        yield item.path, item.mode, item.data


def _newest(source: Source) -> float:
    with tarfile.open(archives.place(source.orig.name)) as archive:
        return max(float(member.mtime) for member in archive if member.isfile())


def _extract(source: Source, folder: Path) -> None:
    """Write the patches of Debian's tarball to `folder`; nothing else of it is used."""
    folder.mkdir()
    with tarfile.open(archives.place(source.debian.name)) as archive:
        for member in archive:
            name = member.name.removeprefix("./").removeprefix("debian/patches/")
            if member.isfile() and name != member.name and ".." not in Path(name).parts:
                stream = archive.extractfile(member)
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                (folder / name).write_bytes(stream.read() if stream else b"")


def _apply(git: Git, folder: Path, released: float) -> Stack:
    """Commit one patch after the other, as dpkg-source applies them: without fuzz."""
    base = head = git.resolve("upstream")
    applied: list[Applied] = []
    with tempfile.TemporaryDirectory(prefix="multiworld-") as scratch:
        staged = Git(git.folder, Path(scratch, "index"))
        staged.out("read-tree", base)
        for item in _series(folder):
            if why := _stage(staged, folder, item):
                return Stack(base, released, tuple(applied), f"{item.name}: {why}")
            commit = staged.commit(staged.line("write-tree"), item.name.encode(), head)
            applied.append(Applied(item.name, head, commit))
            head = commit
    git.out("update-ref", "refs/heads/patched", head)
    return Stack(base, released, tuple(applied))


def _stage(staged: Git, folder: Path, item: Listed) -> str:
    """Apply one patch to the index; return why that is not possible, else nothing."""
    try:
        data = (folder / item.name).read_bytes()
    except OSError as error:
        return error.strerror or "cannot be read"
    if not data.strip():
        return ""
    level = 1 if item.strip is None else item.strip
    done = staged.call("apply", "--cached", "--whitespace=nowarn", f"-p{level}", "-", stdin=data)
    return done.tail if done.returncode else ""
