"""Where things are: the repository, the outputs, the user's cache, and the locks on them."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import glob
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import platformdirs
from filelock import FileLock, Timeout

from build.console import step
from build.errors import BusyError, EnvironmentUnfitError, UsageError
from build.signals import deferred_signals

REPO = Path(__file__).resolve().parent.parent
PATCHES = REPO / "patches"
TESTS = REPO / "tests"
DIST = REPO / "dist"

#: Seconds that a second run waits for the first. A full build takes hours, an overlay minutes.
LOCK_TIMEOUT = 1800.0

_AT_FDCWD, _RENAME_EXCHANGE = -100, 2

#: Reading the umask sets it, which other threads would see: hence once, on import.
_UMASK = os.umask(0)
os.umask(_UMASK)


def cache(*parts: str) -> Path:
    """Return a folder below the project's cache (`MULTIWORLD_CACHE`, else the user's), made if missing."""
    root = os.environ.get("MULTIWORLD_CACHE") or platformdirs.user_cache_dir("multiworld")
    path = Path(root).joinpath(*parts)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        remedy = (
            "remove the file that has its name, or that of a folder above; or set MULTIWORLD_CACHE to another folder"
        )
        raise EnvironmentUnfitError(f"the cache cannot have a folder {path}", remedy=remedy) from None
    return path


def lock_timeout() -> float:
    """Return how many seconds to wait for a lock: `MULTIWORLD_LOCK_TIMEOUT`, else `LOCK_TIMEOUT`."""
    text = os.environ.get("MULTIWORLD_LOCK_TIMEOUT") or str(LOCK_TIMEOUT)
    try:
        return max(0.0, float(text))
    except ValueError:
        what = f"MULTIWORLD_LOCK_TIMEOUT={text} is not a number of seconds"
        raise UsageError(what, remedy="set it to e.g. 60, or unset it") from None


@contextmanager
def locked(path: Path, purpose: str, *, leave: bool = True) -> Iterator[None]:
    """Hold an exclusive lock on `path` (a `.lock` file next to it); announce a wait for it.

    Args:
        path: what only one run may use at a time.
        purpose: what the lock is for, in words.
        leave: leave the lock file behind, for the next run; without it a folder of the user's has no such file.

    Raises:
        BusyError: the lock was not free within `lock_timeout()` seconds.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path.with_name(path.name + ".lock"))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        wait = lock_timeout()
        step(f"another run holds {purpose}; waiting up to {wait:.0f} s for it")
        try:
            lock.acquire(timeout=wait)
        except Timeout:
            what = f"{purpose} is still locked by another run after {wait:.0f} s"
            remedy = "wait for that run, or end it; the lock goes with its process"
            raise BusyError(what, cause=f"lock file {lock.lock_file}", remedy=remedy) from None
    try:
        yield
    finally:
        if not leave:
            # While the lock is held: whoever waits for it sees that its file has no name any more, and opens a new one.
            Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


def clear(path: Path) -> None:
    """Remove what is at `path`, if anything: a file, a link, or a folder with its content."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def sweep(final: Path) -> None:
    """Remove the temporary files and folders that killed runs left while they made `final`.

    Call it with the lock on `final` held: then no other run makes `final`, and none needs these files.
    """
    for part in final.parent.glob(f".{glob.escape(final.name)}.*.part"):
        with contextlib.suppress(OSError):
            clear(part)


def exchange(one: Path, other: Path) -> bool:
    """Exchange the names of two folders of one file system in one step; return whether it can be done here."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if not rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE):
        return True
    code = ctypes.get_errno()
    # A kernel or a file system without it; EXDEV: on overlayfs, a folder of a lower layer.
    if code in (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EXDEV):
        return False
    raise OSError(code, os.strerror(code), str(other))


def _exchange_or_move(part: Path, final: Path) -> bool:
    """Replace the folder `final` by `part`; return False if the file system cannot rename `final`."""
    if exchange(part, final):
        return True
    old = Path(tempfile.mkdtemp(prefix=f".{final.name}.", suffix=".part", dir=final.parent))
    try:
        with deferred_signals():
            final.rename(old)  # onto an empty folder
            try:
                part.rename(final)
            except BaseException:
                old.rename(final)
                raise
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        return False
    finally:
        shutil.rmtree(old, ignore_errors=True)
    return True


@contextmanager
def built_beside(final: Path) -> Iterator[Path]:
    """Yield an empty temporary folder, which replaces `final` when the block succeeds.

    A reader finds the old folder or the new one; where folders cannot be exchanged, none between two renames. Where the
    old one cannot even be renamed, it is removed before. Temporary folders of killed runs are removed first: call it
    with the lock on `final` held.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    sweep(final)
    part = Path(tempfile.mkdtemp(prefix=f".{final.name}.", suffix=".part", dir=final.parent))
    try:
        yield part
        part.chmod(0o777 & ~_UMASK)
        if final.is_symlink() or not final.is_dir() or not _exchange_or_move(part, final):
            clear(final)
            part.rename(final)
    finally:
        shutil.rmtree(part, ignore_errors=True)


@contextmanager
def atomic_write(final: Path) -> Iterator[Path]:
    """Yield a temporary path in `final`'s folder, renamed onto `final` only when the block succeeds."""
    final.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{final.name}.", suffix=".part", dir=final.parent)
    os.close(handle)
    part = Path(name)
    try:
        yield part
        part.chmod(0o666 & ~_UMASK)
        part.replace(final)
    finally:
        part.unlink(missing_ok=True)
