"""Seals: a record next to each entry of the cache, against which the entry is checked before use.

A seal has the SHA-256 and the `stat` of every file. A file whose `stat` is unchanged is not read again: ten thousand
files take a tenth of a second. Programs cannot set `ctime` back, so a change that keeps size and `mtime` is noticed,
too. Two changes are not: one by a machine whose clock was set back, and, on a Linux before 6.13, one within a tick of
the clock (up to 10 ms) of the seal: there, that tick is what `ctime` can tell apart.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias, TypeVar

import msgspec

from build import leases
from build.console import note
from build.paths import atomic_write, built_beside, clear, locked

T = TypeVar("T")

#: git writes this by itself; readers of a repository read its objects or its work tree.
_UNSEALED = ".git/index"

#: Type and permissions, size, mtime, ctime (both in ns), inode number.
Stamp: TypeAlias = tuple[int, int, int, int, int]
#: The stamp and the digest of each file, by its path in the entry.
_Seal: TypeAlias = dict[str, tuple[Stamp, str]]


def write_record(path: Path, record: object) -> None:
    """Write `record` to `path` as JSON behind a line with its SHA-256, which shows damage to it, in one step."""
    data = msgspec.json.encode(record)
    with atomic_write(path) as part:
        part.write_bytes(hashlib.sha256(data).hexdigest().encode() + b"\n" + data)


def read_record(path: Path, form: type[T]) -> T | None:
    """Return the record that `write_record` wrote; None if it does not exist, is damaged or has another form."""
    try:
        digest, _, data = path.read_bytes().partition(b"\n")
        return msgspec.json.decode(data, type=form) if digest == hashlib.sha256(data).hexdigest().encode() else None
    except (OSError, msgspec.DecodeError):
        return None


def sha256_of(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def digest_of(root: Path, files: Iterable[Path]) -> str:
    """Return a SHA-256 over files below `root`: over sorted lines as `sha256sum` prints them."""
    names = sorted(path.relative_to(root).as_posix() for path in files if path.is_file())
    lines = (f"{sha256_of(root / name)}  {name}\n" for name in names)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def _seal_path(entry: Path) -> Path:
    return entry.with_name(entry.name + ".seal")


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_mode, status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino


def _walk(root: Path) -> Iterator[tuple[str, Stamp]]:
    folders = [""]
    while folders:
        prefix = folders.pop()
        with os.scandir(f"{root}/{prefix}") as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(f"{prefix}{entry.name}/")
                elif prefix + entry.name != _UNSEALED:
                    yield prefix + entry.name, _stamp(entry.stat(follow_symlinks=False))


def _digest(path: Path, mode: int) -> str:
    """Return the identity of the content of a file or a link; empty for anything else: reading a pipe never ends."""
    if stat.S_ISLNK(mode):
        return "link " + os.fsencode(path.readlink()).hex()
    return sha256_of(path) if stat.S_ISREG(mode) else ""


def _write(entry: Path, files: _Seal) -> None:
    if (place := _seal_path(entry)).is_dir():
        clear(place)
    write_record(place, files)


def seal(folder: Path, content: Path | None = None) -> None:
    """Seal a folder of the cache as it is now; `content` is where its files are until they are renamed to `folder`."""
    root = content or folder
    _write(folder, {name: (stamp, _digest(root / name, stamp[0])) for name, stamp in _walk(root)})


def intact(folder: Path) -> bool:
    """Return whether a folder of the cache is as sealed; a file with new times and the same bytes is sealed again."""
    known = read_record(_seal_path(folder), _Seal)
    try:
        found = dict(_walk(folder))
        return known is not None and _unchanged(folder, known, found)
    except OSError:  # no folder, or one that cannot be read
        return False


def _unchanged(folder: Path, known: _Seal, found: Mapping[str, Stamp]) -> bool:
    if any(not name.startswith(".git/") for name in found.keys() - known.keys()) or known.keys() - found.keys():
        return False
    touched = [name for name, (stamp, _) in known.items() if found[name] != stamp]
    if any(_digest(folder / name, found[name][0]) != known[name][1] for name in touched):
        return False
    if touched:
        with contextlib.suppress(OSError):  # a cache that cannot be written is read again each time
            _write(folder, known | {name: (found[name], known[name][1]) for name in touched})
    return True


def is_file(path: Path, sha256: str) -> bool:
    """Return whether `path` is a file with the pinned digest, by its seal; without one it is read and sealed."""
    try:
        stamp = _stamp(path.stat())
        wanted: _Seal = {path.name: (stamp, sha256)}
        if read_record(_seal_path(path), _Seal) == wanted:
            return stat.S_ISREG(stamp[0])
        if not stat.S_ISREG(stamp[0]) or sha256_of(path) != sha256:
            return False
    except OSError:
        return False
    with contextlib.suppress(OSError):
        _write(path, wanted)
    return True


def built(final: Path, purpose: str, fill: Callable[[Path], None]) -> Path:
    """Return a folder of the cache, made on the first call, and again when it differs from its seal.

    Args:
        purpose: what it is, for messages: "the headers of numpy".
        fill: writes the content into the empty folder that it is given.
    """
    if _ready(final):
        return final
    with locked(final, purpose):
        if not _ready(final):  # a run that was waited for may have made it
            if os.path.lexists(final):
                note(f"{purpose}: what the cache has is damaged or unknown; it is made again")
            with built_beside(final) as part:
                fill(part)
                seal(final, part)
        return leases.take(final)


def _ready(final: Path) -> bool:
    """Return whether a folder of the cache is as sealed; this process has a lease on it then."""
    return os.path.lexists(final) and intact(leases.take(final))
