"""Seals: a record next to each entry of the cache, against which the entry is checked before use.

A seal has the SHA-256 and the `stat` of every file. A file whose `stat` is unchanged is not read again: ten thousand
files take a tenth of a second. A file whose `stat` differs, or that was too young for its times to be conclusive, is
read. `ctime` cannot be set back, so a change that keeps size and `mtime` is noticed too. A seal does not notice bytes
that change below the file system: what goes from the cache into a wheel is digested again on its way (`damaged`,
`build.wheels.archive`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias, TypeVar

import msgspec

from build import leases
from build.console import note
from build.paths import atomic_write, built_beside, clear, locked

T = TypeVar("T")

#: Nanoseconds within which two changes may get the same time: the resolution of the coarsest systems (FAT, old NFS).
TICK = 2_000_000_000
#: git writes this by itself; readers of a repository read its objects or its work tree.
_UNSEALED = ".git/index"

#: Type and permissions, size, mtime, ctime (both in ns), inode number.
Stamp: TypeAlias = tuple[int, int, int, int, int]


class _File(msgspec.Struct, frozen=True, array_like=True):
    """The seal of one file."""

    stamp: Stamp
    digest: str


class _Seal(msgspec.Struct, frozen=True):
    """The stored seal: files by relative path, and when reading them began (ns, the file system's clock)."""

    since: int
    files: dict[str, _File]


def signed(data: bytes) -> bytes:
    """Return `data` behind a line with its SHA-256, so that a small record of the cache shows damage to it."""
    return hashlib.sha256(data).hexdigest().encode() + b"\n" + data


def unsigned(data: bytes) -> bytes | None:
    """Return the data that `signed` was given, None when it is damaged."""
    digest, _, rest = data.partition(b"\n")
    return rest if digest == hashlib.sha256(rest).hexdigest().encode() else None


def write_record(path: Path, record: object) -> None:
    """Write `record` to `path` as signed JSON, in one step."""
    with atomic_write(path) as part:
        part.write_bytes(signed(msgspec.json.encode(record)))


def read_record(path: Path, form: type[T]) -> T | None:
    """Return the record that `write_record` wrote; None if it does not exist, is damaged or has another form."""
    try:
        return msgspec.json.decode(unsigned(path.read_bytes()) or b"", type=form)
    except (OSError, msgspec.DecodeError):
        return None


def sha256_of(path: Path) -> str:
    with path.open("rb") as stream:
        if hasattr(hashlib, "file_digest"):  # not on Python 3.10
            return str(hashlib.file_digest(stream, "sha256").hexdigest())
        digest = hashlib.sha256()
        while block := stream.read(1 << 20):
            digest.update(block)
        return digest.hexdigest()


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
        return "link " + hashlib.sha256(os.fsencode(path.readlink())).hexdigest()
    return sha256_of(path) if stat.S_ISREG(mode) else ""


def _read(entry: Path) -> _Seal | None:
    return read_record(_seal_path(entry), _Seal)


def _now(entry: Path) -> int:
    """Return the time (ns) of the file system's clock; 0, which is older than any file, where that fails."""
    try:
        with tempfile.TemporaryFile(dir=entry.parent) as stream:
            return os.fstat(stream.fileno()).st_mtime_ns
    except OSError:
        return 0


def _write(entry: Path, since: int, files: dict[str, _File]) -> None:
    place = _seal_path(entry)
    if place.is_dir():
        clear(place)
    write_record(place, _Seal(since, files))


def seal(folder: Path, content: Path | None = None) -> None:
    """Seal a folder of the cache as it is now; `content` is where its files are until they are renamed to `folder`."""
    root, since = content or folder, _now(folder)
    files = {name: _File(stamp, _digest(root / name, stamp[0])) for name, stamp in _walk(root)}
    _write(folder, since, files)


def _suspects(known: _Seal, found: Mapping[str, Stamp]) -> list[str] | None:
    """Return the files that have to be read, None when a file is missing or an unknown one is there."""
    more = [name for name in found.keys() - known.files.keys() if not name.startswith(".git/")]
    if more or known.files.keys() - found.keys():
        return None
    young = known.since - TICK
    return [name for name, item in known.files.items() if found[name] != item.stamp or found[name][3] >= young]


def intact(folder: Path) -> bool:
    """Return whether a folder of the cache is as sealed; a file with new times and the same bytes is sealed again."""
    known = _read(folder)
    if known is None:
        return False
    try:
        found = dict(_walk(folder))
        suspects = _suspects(known, found)
        return suspects is not None and (not suspects or _confirmed(folder, known, found, suspects))
    except OSError:  # no folder, or one that cannot be read
        return False


def _confirmed(folder: Path, known: _Seal, found: Mapping[str, Stamp], suspects: Iterable[str]) -> bool:
    """Read the suspects; when their bytes are unchanged, seal the folder again."""
    files, since = dict(known.files), _now(folder)
    for name in suspects:
        if _digest(folder / name, found[name][0]) != known.files[name].digest:
            return False
        files[name] = _File(found[name], known.files[name].digest)
    with contextlib.suppress(OSError):  # a cache that cannot be written is read again each time
        _write(folder, since, files)
    return True


def is_file(path: Path, sha256: str) -> bool:
    """Return whether `path` is a file with the pinned digest, by its seal; without one it is read and sealed."""
    try:
        stamp = _stamp(path.stat())
        if not stat.S_ISREG(stamp[0]):
            return False
        known = _read(path) or _Seal(0, {})
        if known.files == {path.name: _File(stamp, sha256)} and stamp[3] < known.since - TICK:
            return True
        since = _now(path)
        if sha256_of(path) != sha256:
            return False
    except OSError:
        return False
    with contextlib.suppress(OSError):
        _write(path, since, {path.name: _File(stamp, sha256)})
    return True


def distrust(entry: Path) -> None:
    """Remove the seal of an entry, so that its next use makes it again."""
    clear(_seal_path(entry))


def damaged(folder: Path, paths: Collection[Path] | None = None) -> list[str]:
    """Return the files that differ from their seal, by reading them; an entry with such files loses its seal.

    Args:
        folder: a folder in a sealed entry of the cache; without a seal above it nothing is known, and nothing differs.
        paths: the files to read, where they are in the entry. Default: all in `folder`.

    Returns:
        Their paths relative to the top of the entry.
    """
    places = (place for place in (folder, *folder.parents) if place.name)
    root = next((place for place in places if _seal_path(place).is_file()), None)
    known = _read(root) if root else None
    if root is None or known is None:
        return []
    wanted = folder.rglob("*") if paths is None else paths
    names = {path.relative_to(root).as_posix(): path for path in wanted if path.is_relative_to(root)}
    wrong = [n for n, path in names.items() if n in known.files and not _has_digest(path, known.files[n].digest)]
    if wrong:
        distrust(root)
    return sorted(wrong)


def _has_digest(path: Path, digest: str) -> bool:
    try:
        return _digest(path, path.lstat().st_mode) == digest
    except OSError:
        return False


def built(final: Path, purpose: str, fill: Callable[[Path], None], adopt: Callable[[Path], bool] | None = None) -> Path:
    """Return a folder of the cache, made on the first call, and again when it differs from its seal.

    Args:
        purpose: what it is, for messages: "the headers of numpy".
        fill: writes the content into the empty folder that it is given.
        adopt: whether a folder without a seal is right, by a pin of its own. Default: it is not.
    """
    if _ready(final):
        return final
    with locked(final, purpose):
        if _ready(final):  # made by the run that was waited for
            return final
        if adopt is None or not _adopted(final, adopt):
            if os.path.lexists(final):
                note(f"{purpose}: what the cache has is damaged or unknown; it is made again")
            with built_beside(final) as part:
                fill(part)
                seal(final, part)
        return leases.take(final)


def _ready(final: Path) -> bool:
    """Return whether a folder of the cache is as sealed; this process has a lease on it then."""
    return os.path.lexists(final) and intact(leases.take(final))


def _adopted(final: Path, adopt: Callable[[Path], bool]) -> bool:
    """Seal a folder without a seal if `adopt` accepts it; return whether it does."""
    try:
        known = final.is_dir() and adopt(final)
    except OSError:  # a file in it that cannot be read
        return False
    if known:
        seal(final)
    return known
