"""The official wheel: fetched once, checked against its pinned digest, unpacked as far as needed."""

from __future__ import annotations

import hashlib
import zipfile
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath

from build import leases
from build.console import note, step
from build.errors import DigestMismatchError, EnvironmentUnfitError, SourceError, WheelError, reading
from build.official.index import IndexFile, wheels
from build.official.transfer import download
from build.official.urls import local_path
from build.paths import cache, locked
from build.releases import Release
from build.seals import built, is_file, sha256_of

#: What an overlay is compiled and linked against.
_MEMBERS = ("torch/include/*", "torch/lib/*.so*", "torch/version.py", "torch/share/cmake/*")


def pinned_digest(release: Release, python: str) -> str:
    try:
        return release.wheel.sha256[python]
    except KeyError:
        raise EnvironmentUnfitError(
            f"PyTorch {release.version} has no official wheel for Python {python}",
            cause="it was published for Python " + ", ".join(release.wheel.sha256),
            remedy="choose one of these, e.g. `-- --python " + (list(release.wheel.sha256) or ["?"])[-1] + "`",
        ) from None


def _folder(pinned: str) -> Path:
    return cache("wheels", pinned[:16])


def cached_wheel(release: Release, python: str) -> Path | None:
    """Return the path of the cached official wheel, without a check of its content; None if it is not cached."""
    pinned = release.wheel.sha256.get(python)
    return next(_folder(pinned).glob("*.whl"), None) if pinned else None


def _choose(release: Release, python: str, pinned: str) -> IndexFile:
    """Return the file with the pinned digest: indexes may have rebuilt wheels under the official name."""
    offered = wheels("torch", release.wheel.version, python)
    for file in offered:
        path = local_path(file.url)
        if file.sha256 == pinned or (not file.sha256 and path is not None and sha256_of(path) == pinned):
            return file
    if not offered:
        what = f"the configured index has no wheel of torch {release.wheel.version} for Python {python}"
        raise SourceError(what, remedy="see pip's `index-url` and `extra-index-url` (`pip config list`)")
    found = "\n".join(f"found  {file.sha256 or '(no digest)'} {file.name}" for file in offered)
    what = f"torch {release.wheel.version} for Python {python} is not the official wheel\npinned {pinned}\n{found}"
    raise DigestMismatchError(what, remedy="point pip at an index with the official wheels; nothing was built")


def fetch_wheel(release: Release, python: str) -> Path:
    """Return the official wheel of `release` for CPython `python`, from the cache or the index.

    A cached wheel is compared with its pinned digest; a damaged one is fetched again.

    Raises:
        DigestMismatchError: the file on the index is not the pinned one; the message has both digests.
        EnvironmentUnfitError: that Python has no official wheel, or no network.
        SourceError: the index does not have it.
    """
    pinned = pinned_digest(release, python)
    folder = _folder(pinned)
    with locked(folder / "wheel", f"the download of torch {release.version} for Python {python}"):
        ready = cached_wheel(release, python)
        if ready is not None and is_file(leases.take(ready), pinned):
            return ready
        if ready is not None:
            note(f"{ready.name} in the cache is damaged: its SHA-256 is not the pinned one; fetched again")
        file = _choose(release, python, pinned)
        step(f"fetching {file.name}")
        path = download(file.url, folder / file.name, pinned)
        note(f"SHA-256 {pinned} as pinned")
        return leases.take(path)


def _extract(wheel: Path, into: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for info in archive.infolist():
            if info.is_dir() or not any(fnmatchcase(info.filename, pattern) for pattern in _MEMBERS):
                continue
            if ".." in PurePosixPath(info.filename).parts:
                raise WheelError(f"{wheel.name} has a member that reaches outside: {info.filename}")
            archive.extract(info, into)
            (into / info.filename).chmod(info.external_attr >> 16 & 0o777 or 0o644)


def unpack(wheel: Path) -> Path:
    """Unpack what an overlay needs of a wheel into the cache, once per content, and again when it is damaged there.

    Returns:
        The folder that holds it under the members' names. It is shared: never write into it.
    """
    digest = hashlib.sha256("\n".join(_MEMBERS).encode())
    with reading(str(wheel)), zipfile.ZipFile(wheel) as archive:  # names, sizes and CRCs: the content, in milliseconds
        for info in sorted(archive.infolist(), key=lambda item: item.filename):
            digest.update(f"{info.filename}\0{info.file_size}\0{info.CRC:08x}\n".encode())

    def fill(part: Path) -> None:
        step(f"unpacking {wheel.name}")
        with reading(str(wheel)):
            _extract(wheel, part)

    return built(cache("unpacked") / digest.hexdigest()[:24], f"the unpacked {wheel.name}", fill)
