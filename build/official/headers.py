"""Header packages: only the `include` folders of wheels, read by range, without their 700 MB of libraries."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import BinaryIO

from packaging.utils import parse_wheel_filename

from build.console import note, step
from build.errors import DigestMismatchError, SourceError, reading
from build.official.index import IndexFile, wheels
from build.official.transfer import RangeUnsupportedError, download, opened
from build.paths import cache
from build.releases import HeaderPackage, Release
from build.seals import built, digest_of

#: For the few packages that are not `py3-none`.
_PYTHON = "3.11"
_REMEDY = "check that `pip download` gets it whole; a wheel of a `find-links` folder has to be replaced there"


def _include_root(name: str) -> str | None:
    parts = PurePosixPath(name).parts
    if "include" not in parts[:-1] or ".." in parts or name.startswith("/"):
        return None
    return "/".join(parts[: parts.index("include") + 1])


def tree_digest(root: Path) -> str:
    """Return a SHA-256 over the headers below `root`."""
    return digest_of(root, (path for path in root.rglob("*") if _include_root(path.relative_to(root).as_posix())))


def include_dirs(root: Path) -> tuple[Path, ...]:
    roots = {_include_root(path.relative_to(root).as_posix()) for path in root.rglob("*") if path.is_file()}
    return tuple(root / item for item in sorted(item for item in roots if item))


def _extract(archive: zipfile.ZipFile, into: Path) -> None:
    """Write the header members in the order of the archive, which takes the fewest range requests."""
    members = [info for info in archive.infolist() if _include_root(info.filename) and not info.is_dir()]
    for info in sorted(members, key=lambda item: item.header_offset):
        target = into / info.filename
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(archive.read(info))  # zipfile checks each member's CRC


@contextmanager
def _wheel_stream(file: IndexFile, part: Path) -> Iterator[BinaryIO]:
    """Open the wheel by range requests, or fetch it whole into `part` for the time of the block."""
    try:
        with opened(file.url) as stream:
            yield stream
    except RangeUnsupportedError:
        if not file.sha256:
            what = f"{file.name}: the index gives no digest, and its server does not answer range requests"
            raise SourceError(what, remedy="use an index that gives digests (`#sha256=` in its links)") from None
        note(f"{file.name}: fetched whole, since its server does not answer range requests")
        whole = download(file.url, part / file.name, file.sha256)
        with whole.open("rb") as stream:
            yield stream
        whole.unlink()


def _find(package: HeaderPackage) -> IndexFile:
    found = wheels(package.name, package.version, _PYTHON)
    if not found:
        what = f"the index has no wheel of {package.name} {package.version} for x86_64 Linux"
        remedy = "add an index that has it to pip's `extra-index-url`, or the wheel to a `find-links` folder"
        raise SourceError(what, remedy=remedy)
    # Indexes differ in how they order the builds of one version; the pins are of the first build.
    return min(found, key=lambda file: parse_wheel_filename(file.name)[2])


def _fill(package: HeaderPackage, part: Path) -> None:
    step(f"fetching the headers of {package.name} {package.version}")
    file = _find(package)
    with reading(file.name, _REMEDY), _wheel_stream(file, part) as stream, zipfile.ZipFile(stream) as archive:
        _extract(archive, part)
    found = tree_digest(part)
    if package.headers_sha256 and found != package.headers_sha256:
        head = f"headers of {package.name} {package.version} are not the pinned ones"
        cause = "the wheel on the index was replaced, or the pin in build/releases.toml is wrong"
        raise DigestMismatchError(f"{head}\npinned {package.headers_sha256}\nfound  {found}", cause=cause)
    if not include_dirs(part):
        raise SourceError(f"{package.name} {package.version} has no include folder")


def _cache_folder(package: HeaderPackage) -> Path:
    return cache("headers") / f"{package.name}-{package.version}-{package.headers_sha256[:16] or 'unpinned'}"


def cached_package(package: HeaderPackage) -> Path | None:
    """Return the cached folder of a header package, without a check of its content; None if it is not cached."""
    folder = _cache_folder(package)
    return folder if folder.is_dir() else None


def fetch_package(package: HeaderPackage) -> Path:
    """Return the folder with the headers of one package, fetched once, and again when they are damaged.

    Headers without a pinned digest are accepted.

    Raises:
        DigestMismatchError: the headers are not the pinned ones.
        SourceError: the index has no such wheel, or the wheel has no headers.
        EnvironmentUnfitError: no network.
    """
    return built(_cache_folder(package), f"the headers of {package.name}", lambda part: _fill(package, part))


def fetch_headers(release: Release) -> tuple[Path, ...]:
    """Return the include folders of all header packages of `release`, in the order of its entry."""
    return tuple(path for package in release.header_packages for path in include_dirs(fetch_package(package)))
