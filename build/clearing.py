"""The content of the cache, and freeing it by age or size: never what a run uses, and nothing of others."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from build import leases
from build.bootstrap import READY
from build.paths import cache, clear

_DAY = 86400.0
#: The folders of the cache, and what is in each.
KINDS = {
    "applied": "checkouts with a series applied",
    "compiled": "compiler caches of full builds",
    "environments": "environments of tests",
    "fresh": "packages of bare systems",
    "full": "workspaces of full builds",
    "gpuless": "imitations of CUDA and NCCL",
    "headers": "headers of CUDA and others",
    "imports": "what built wheels are imported with",
    "nox": "environments of nox",
    "objects": "compiled units",
    "port": "checkouts of ports, with your edits",
    "porting-bench/stacks": "patch stacks of the porting bench",
    "runtime": "libraries that overlays are linked against",
    "sources": "source trees of releases",
    "stock": "outcomes of stock wheels",
    "toolchains": "CUDA compilers, of the index or conda",
    "tooling": "environments of ci/install",
    "tools": "environments of conda-lock",
    "unpacked": "unpacked official wheels",
    "wheels": "official wheels",
}
#: Never freed: nothing can make the content again.
KEPT = "port"
#: Patterns of entries that bear no mark of the tooling.
_UNMARKED = {"compiled": "*cache", "stock": "*.json"}
_MARKS = (".lock", ".use", ".seal")


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of the cache.

    Attributes:
        kind: its folder, one of `KINDS`.
        path: a file or a folder.
        lock: the lock file that a run holds which makes the entry, if there is such a file.
        size: bytes on disk.
        used: time of its last use (seconds of the epoch).
    """

    kind: str
    path: Path
    lock: Path | None
    size: int
    used: float


def _beside(path: Path, suffix: str) -> Path:
    return path.with_name(path.name + suffix)


def _size(path: Path) -> int:
    """Return the bytes on disk below `path`; links are not followed, hard links within it count once."""
    places, found = [path], dict[tuple[int, int], int]()
    for top, folders, files in os.walk(path):
        places += [Path(top, name) for name in (*folders, *files)]
    for place in places:
        with contextlib.suppress(OSError):  # gone, or not to be read
            status = place.lstat()
            found[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(found.values())


def _used(path: Path) -> float:
    """Return the time of the last use: that of the lease; without one, that of the last change."""
    lease = leases.place(path)
    times = [0.0]
    for place in [lease] if lease.exists() else [path, _beside(path, ".seal")]:
        with contextlib.suppress(OSError):
            times.append(place.lstat().st_mtime)
    return max(times)


def _of(kind: str, folder: Path) -> Iterator[tuple[Path, Path | None]]:
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") and path.suffix == ".part":  # left by a killed run
            yield path, path.with_name(path.name[1:].rsplit(".", 2)[0] + ".lock")
        elif kind == "wheels" and path.is_dir():
            yield from ((item, path / "wheel.lock") for item in sorted(path.glob("*.whl")))
        elif kind == "environments" and (path / ".lock").is_file():
            yield path, path / ".lock"
        elif kind in _UNMARKED and path.match(_UNMARKED[kind]):
            yield path, None
        elif path.suffix not in _MARKS and (
            any(_beside(path, suffix).exists() for suffix in _MARKS) or (path / "entry.json").is_file()
        ):
            yield path, _beside(path, ".lock")


def entries() -> tuple[Entry, ...]:
    """Return the entries of the cache, the least recently used first; what bears no mark of the tooling is left out."""
    folders = [(kind, cache() / kind) for kind in KINDS]
    found = [
        Entry(kind, path, lock, _size(path), _used(path))
        for kind, folder in folders
        if folder.is_dir() and not folder.is_symlink()
        for path, lock in _of(kind, folder)
    ]
    return tuple(sorted(found, key=lambda item: (item.used, item.path)))


def choose(found: Iterable[Entry], now: float, *, days: float | None, keep: int | None) -> list[Entry]:
    """Choose what to free.

    Args:
        found: the entries, the least recently used first.
        now: the time (seconds of the epoch).
        days: free what was last used longer ago.
        keep: then free the least recently used until the cache has no more than that many bytes.
    """
    every, chosen = list(found), list[Entry]()
    size = sum(item.size for item in every)
    for item in every:
        old = days is not None and now - item.used > days * _DAY
        if item.kind != KEPT and (old or (keep is not None and size > keep)):
            chosen.append(item)
            size -= item.size
    return chosen


def free(item: Entry, *, really: bool = True) -> bool:
    """Free an entry, unless a run makes or uses it; return whether none does.

    Args:
        really: False only tells what would be freed.

    Raises:
        OSError: it cannot be removed.
    """
    try:
        lock = FileLock(item.lock).acquire(timeout=0) if item.lock else contextlib.nullcontext()
    except Timeout:
        return False
    with lock, leases.unused(item.path) as idle:
        if idle and really:
            # First what tells that it is whole, since a killed clean leaves half a folder.
            clear(_beside(item.path, ".seal"))
            if item.path.is_dir() and not item.path.is_symlink():
                (item.path / READY).unlink(missing_ok=True)
            clear(item.path)
        return idle
