"""The content of the cache, and freeing it by age or size: never what a run uses, and nothing of others."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from filelock import FileLock, Timeout

from build import leases
from build.paths import cache, clear

_DAY = 86400.0


class Kind(Enum):
    """A folder of the cache, and what is in it."""

    APPLIED = "applied", "checkouts with a series applied"
    COMPILED = "compiled", "compiler caches of full builds"
    ENVIRONMENTS = "environments", "environments of tests"
    FRESH = "fresh", "packages of bare systems"
    FULL = "full", "workspaces of full builds"
    GPULESS = "gpuless", "imitations of CUDA and NCCL"
    HEADERS = "headers", "headers of CUDA and others"
    IMPORTS = "imports", "what built wheels are imported with"
    NOX = "nox", "environments of nox"
    OBJECTS = "objects", "compiled units"
    PORT = "port", "checkouts of ports, with your edits"
    STACKS = "porting-bench/stacks", "patch stacks of the porting bench"
    SOURCES = "sources", "source trees of releases"
    STOCK = "stock", "outcomes of stock wheels"
    TOOLCHAINS = "toolchains", "CUDA compilers, of the index or conda"
    TOOLING = "tooling", "environments of ci/install"
    TOOLS = "tools", "environments of conda-lock"
    UNPACKED = "unpacked", "unpacked official wheels"
    WHEELS = "wheels", "official wheels"

    def __init__(self, folder: str, holds: str) -> None:
        self.folder = folder
        self.holds = holds

    @property
    def unmarked(self) -> str:
        """Pattern of its entries that bear no mark of the tooling."""
        return {Kind.COMPILED: "*cache", Kind.STOCK: "*.json"}.get(self, "")

    @property
    def kept(self) -> bool:
        """Return whether it is never freed: nothing can make the content again."""
        return self is Kind.PORT


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the cache.

    Attributes:
        path: a file or a folder.
        locks: lock files of which a run that makes or uses the entry holds one.
        size: bytes on disk.
        used: time of its last use (seconds of the epoch).
    """

    kind: Kind
    path: Path
    locks: tuple[Path, ...]
    size: int
    used: float


@dataclass(frozen=True, slots=True)
class Cleared:
    """The result of a clean: freed entries, entries in use, and those that could not be removed, and why."""

    freed: tuple[Entry, ...]
    busy: tuple[Entry, ...]
    failed: tuple[tuple[Entry, str], ...]


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.lstat()
    except OSError:  # gone, or not to be read
        return None


def _size(path: Path) -> int:
    """Return the bytes on disk below `path`; links are not followed, hard links within it count once."""
    seen: dict[tuple[int, int], int] = {}
    for top, folders, files in os.walk(path):
        for name in (*folders, *files):
            if found := _status(Path(top, name)):
                seen[found.st_dev, found.st_ino] = found.st_blocks * 512
    own = _status(path)
    return sum(seen.values()) + (own.st_blocks * 512 if own else 0)


def _used(path: Path) -> float:
    """Return the time of the last use: that of the lease; without one, that of the last change."""
    places = [leases.place(path)] if leases.place(path).exists() else [path, path.with_name(path.name + ".seal")]
    return max((found.st_mtime for place in places if (found := _status(place))), default=0.0)


def _entry(kind: Kind, path: Path, *locks: Path) -> Entry:
    return Entry(kind, path, locks, _size(path), _used(path))


def _lock(path: Path) -> Path:
    return path.with_name(path.name + ".lock")


def _marked(path: Path) -> bool:
    """Return whether an entry has a mark of the tooling: a lock, a lease, a seal, or the record of an object."""
    beside = any(path.with_name(path.name + suffix).exists() for suffix in (".lock", ".use", ".seal"))
    return beside or (path / "entry.json").is_file()


def _of(kind: Kind, folder: Path) -> Iterator[Entry]:
    for path in sorted(folder.iterdir()):
        name = path.name
        if name.startswith(".") and name.endswith(".part"):  # left by a killed run
            yield _entry(kind, path, _lock(path.with_name(name[1:].rsplit(".", 2)[0])))
        elif kind is Kind.WHEELS and path.is_dir():
            yield from (_entry(kind, item, path / "wheel.lock") for item in sorted(path.glob("*.whl")))
        elif kind is Kind.ENVIRONMENTS and (path / ".lock").is_file():
            yield _entry(kind, path, path / ".lock")
        elif kind.unmarked and path.match(kind.unmarked):
            yield _entry(kind, path)
        elif path.suffix not in (".lock", ".use", ".seal") and _marked(path):
            yield _entry(kind, path, _lock(path))


def entries() -> tuple[Entry, ...]:
    """Return the entries of the cache, the least recently used first; what bears no mark of the tooling is left out."""
    top, found = cache(), list[Entry]()
    for kind in Kind:
        folder = top / kind.folder
        if folder.is_dir() and not folder.is_symlink():
            found += _of(kind, folder)
    return tuple(sorted(found, key=lambda item: (item.used, item.path)))


def choose(found: Iterable[Entry], now: float, *, days: float | None, keep: int | None) -> list[Entry]:
    """Choose what to free.

    Args:
        found: the entries, the least recently used first.
        now: the time (seconds of the epoch).
        days: free what was last used longer ago.
        keep: then free the least recently used until the cache has no more than that many bytes.
    """
    every = list(found)
    chosen = [item for item in every if not item.kind.kept and days is not None and now - item.used > days * _DAY]
    left = [item for item in every if item not in chosen]
    size = sum(item.size for item in left)
    for item in left:
        if keep is None or size <= keep:
            break
        if not item.kind.kept:
            chosen.append(item)
            size -= item.size
    return chosen


@contextmanager
def _held(item: Entry) -> Iterator[bool]:
    """Yield whether no run makes or uses the entry; if so, none begins to within the block."""
    with contextlib.ExitStack() as stack:
        try:
            for lock in item.locks:
                stack.enter_context(FileLock(lock).acquire(timeout=0))
        except Timeout:
            yield False
            return
        yield stack.enter_context(leases.unused(item.path))


def _remove(item: Entry) -> None:
    # The seal goes first: a folder that is half removed has none.
    clear(item.path.with_name(item.path.name + ".seal"))
    clear(item.path)


def free(chosen: Iterable[Entry], *, really: bool = True) -> Cleared:
    """Free entries, unless a run uses them.

    Args:
        really: False only tells what would be freed.
    """
    freed, busy, failed = list[Entry](), list[Entry](), list[tuple[Entry, str]]()
    for item in chosen:
        problem = _free(item, freed, busy, really=really)
        failed += [(item, problem)] if problem else []
    return Cleared(tuple(freed), tuple(busy), tuple(failed))


def _free(item: Entry, freed: list[Entry], busy: list[Entry], *, really: bool) -> str:
    """Free one entry, add it to one of the lists, and return why it could not be removed, empty if it could."""
    try:
        with _held(item) as idle:
            if idle and really:
                _remove(item)
            (freed if idle else busy).append(item)
    except OSError as error:
        return error.strerror or str(error)
    return ""
