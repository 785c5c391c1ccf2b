"""Rebuild the patch stacks of Debian source packages: upstream's tree, and one commit per patch of `debian/patches`."""

from __future__ import annotations

import contextlib
import hashlib
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import msgspec

from build import paths
from build.console import note, progress, step
from build.errors import PatchError, SourceError
from build.git import Git, init
from build.official.transfer import check_digest
from build.porting.between_trees import Listed, read_series
from build.releases import Frozen
from build.seals import built, read_record, write_record
from build.series.model import PatchFile
from build.series.patchfile import parse_raw, restrip
from build.sources import debian
from build.sources.readers import tarball
from build.sources.tree import TreePurpose

LIST = Path(__file__).with_name("packages.toml")
#: Increased when the same archives give another stack.
FORMAT = "2"
_RECORD = "stack.json"


class Archive(Frozen, frozen=True):
    """One tarball of a source package: its file name and SHA-256."""

    name: str
    sha256: str


class Source(Frozen, frozen=True):
    """A source package of one suite: its full version, upstream's tarball, and Debian's with the patches."""

    suite: str
    version: str
    orig: Archive
    debian: Archive


class Package(Frozen, frozen=True):
    """A source package in two suites."""

    name: str
    old: Source
    new: Source

    @property
    def title(self) -> str:
        return f"{self.name}, {self.old.suite} to {self.new.suite}"

    @property
    def archives(self) -> tuple[Archive, ...]:
        return self.old.orig, self.old.debian, self.new.orig, self.new.debian


class _List(Frozen, frozen=True):
    package: tuple[Package, ...]


class Applied(msgspec.Struct, frozen=True):
    """One patch of a stack, with the commits before and after it."""

    name: str
    before: str
    after: str


class Stack(msgspec.Struct, frozen=True):
    """A stack.

    Attributes:
        base: upstream's commit.
        released: time of the newest file of upstream's release, in seconds.
        applied: the patches on it, up to the first that does not apply.
    """

    base: str
    released: float
    applied: tuple[Applied, ...]


#: Returns the folder with the two tarballs of a source package.
Fetch = Callable[[str, Source], Path]


def load() -> tuple[Package, ...]:
    """Return the packages, in the order of the list."""
    return msgspec.toml.decode(LIST.read_bytes(), type=_List).package


@dataclass(frozen=True)
class Mirror:
    """This machine's Debian mirror, used with a private apt state in `folder`."""

    folder: Path
    suites: Sequence[str]

    @cached_property
    def _state(self) -> Path:
        reasons = []
        for number, mirror in enumerate(debian.mirrors()):
            state = self.folder / str(number)
            step(f"reading the source indexes of Debian {', '.join(self.suites)}")
            try:
                debian.prepare(state, mirror, self.suites)
            except SourceError as error:
                reasons.append(str(error))
                continue
            return state
        raise SourceError(f"no mirror has the sources of {', '.join(self.suites)}", cause="\n".join(reasons))

    def fetch(self, name: str, source: Source) -> Path:
        """Fetch both tarballs of a package; their digests are pinned, so that the signed `.dsc` is not needed."""
        folder = Path()
        for option, item in (("--tar-only", source.orig), ("--diff-only", source.debian)):
            folder = debian.download(self._state, f"{name}={source.version}", option)
            if not (folder / item.name).is_file():
                raise SourceError(f"{name} {source.version} has no {item.name}")
            check_digest(folder / item.name, item.sha256, item.name)
        return folder


def available(packages: Sequence[Package]) -> dict[Package, Path]:
    """Return the packages with the folders of their stacks, made on the first call; what cannot be had is left out.

    Raises:
        NotDebianError: apt is missing, or this is another distribution.
        SourceError: no mirror has the suites.
    """
    suites = dict.fromkeys(source.suite for item in packages for source in (item.old, item.new))
    found: dict[Package, Path] = {}
    with tempfile.TemporaryDirectory(prefix="multiworld-apt-") as folder, progress() as bar:
        mirror = Mirror(Path(folder), list(suites))
        task = bar.add_task("rebuilding patch stacks", total=len(packages), unit="packages")
        for item in packages:
            try:
                found[item] = rebuild(item, mirror.fetch)
            except debian.NotDebianError:
                raise
            except SourceError as error:
                note(f"left out: {item.title}: {str(error).splitlines()[0]}")
            bar.advance(task)
    return found


def rebuild(package: Package, fetch: Fetch) -> Path:
    """Return the folder with `old` and `new`, each a repository with its patches beside it; made on the first call.

    Raises:
        SourceError: a tarball cannot be had, or not be read.
    """
    digests = [item.sha256 for item in package.archives]
    key = hashlib.sha256("\0".join([FORMAT, *digests]).encode()).hexdigest()
    final = paths.cache("porting-bench", "stacks") / f"{package.name}-{key[:16]}"
    return built(final, f"the patch stacks of {package.title}", partial(_fill, package, fetch))


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


def _fill(package: Package, fetch: Fetch, part: Path) -> None:
    for side, source in (("old", package.old), ("new", package.new)):
        folder = fetch(package.name, source)
        orig = folder / source.orig.name
        (part / side / "repo").mkdir(parents=True)
        git = init(part / side / "repo", bare=True)
        with contextlib.closing(tarball(orig, TreePurpose.FULL)) as stream:
            git.fast_import(stream, f"{package.name} {source.version}\n".encode(), "upstream")
        _extract(folder / source.debian.name, part / side / "patches")
        write_record(part / side / _RECORD, _apply(git, part / side / "patches", _newest(orig)))


def _newest(orig: Path) -> float:
    with tarfile.open(orig) as archive:
        return max(float(member.mtime) for member in archive if member.isfile())


def _extract(tarred: Path, folder: Path) -> None:
    """Write the patches of Debian's tarball to `folder`; nothing else of it is used."""
    folder.mkdir()
    with tarfile.open(tarred) as archive:
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
            if not _stage(staged, folder / item.name, 1 if item.strip is None else item.strip):
                break
            commit = staged.commit(staged.line("write-tree"), item.name.encode(), head)
            applied.append(Applied(item.name, head, commit))
            head = commit
    git.out("update-ref", "refs/heads/patched", head)
    return Stack(base, released, tuple(applied))


def _stage(staged: Git, file: Path, level: int) -> bool:
    """Apply one patch to the index; return whether that is possible."""
    data = file.read_bytes() if file.is_file() else None
    if not data or not data.strip():
        return data is not None
    return staged.call("apply", "--cached", "--whitespace=nowarn", f"-p{level}", "-", stdin=data).returncode == 0
