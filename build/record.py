"""`build.json`, and `build-PYTHON.json` per Python: what a build was made from, how, and what was proven.

The record contains neither times nor paths of the machine.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

import msgspec

from build.overlay.model import Check, Overlay
from build.overlay.toolchain import Toolchain, linker
from build.paths import atomic_write
from build.releases import Release
from build.seals import digest_of, sha256_of
from build.series.model import HunkVerdict, PatchFile
from build.sources import SourceTree

T = TypeVar("T")
#: Increased when a field of the record changes its meaning.
SCHEMA = 1
NAME = "build.json"
#: The name of the provenance in a wheel's dist-info.
EMBEDDED = "multiworld.json"


class Patch(msgspec.Struct, frozen=True):
    """One patch that was applied."""

    name: str
    subject: str
    sha256: str


class UnitRecord(msgspec.Struct, frozen=True):
    """One translation unit of the overlay."""

    unit: str
    why: str
    object_sha256: str


class Provenance(msgspec.Struct, frozen=True):
    """All that decides the overlay's bytes; embedded in each wheel as `EMBEDDED`.

    Attributes:
        version: version of the wheels.
        source: where the sources came from, and how they are known to be the release.
        source_tree: commit id of the unpatched sources as imported; it depends on their files alone.
        libtorch_cuda_build_ids: GNU build ids of the library the overlay is for, by Python version.
        series: names of the series.
        headers: header packages, `name==version`.
        compiler: first line of `--version`.
        linker: likewise, of the linker that the compiler starts.
        flags: the compile line without paths.
        soname: file name of the overlay; empty where patches change Python files only: then there is none, and no
            compiler, linker, flag or unit.
        assembly: digest of this project's code that goes into the wheels or writes them.
        platform: platform tag that the overlay needs.
    """

    schema: int
    release: str
    version: str
    commit: str
    source: str
    source_tree: str
    libtorch_cuda_build_ids: dict[str, str]
    series: tuple[str, ...]
    patches: tuple[Patch, ...]
    headers: tuple[str, ...]
    compiler: str
    linker: str
    flags: tuple[str, ...]
    units: tuple[UnitRecord, ...]
    soname: str
    overlay_sha256: str
    overlay_build_id: str
    assembly: str
    platform: str
    checks: tuple[Check, ...]


class Artifact(msgspec.Struct, frozen=True):
    """A file, by name and content."""

    name: str
    sha256: str
    size: int


#: In place of a wheel that was not built.
NONE = Artifact("", "", 0)


class BuildRecord(msgspec.Struct, frozen=True):
    """The whole of `build.json`.

    Attributes:
        python: CPython version of the patched wheel; the overlay wheel is for all versions, unless it has units of
            libtorch_python.
        overlay: the overlay wheel; `NONE` where patches change Python files, too.
        replaced: exported stock symbols that the overlay defines, mangled.
        passed_over: origins of sources that could not be used, with the reason.
    """

    provenance: Provenance
    python: str
    official: Artifact
    patched: Artifact
    overlay: Artifact
    verdicts: tuple[HunkVerdict, ...]
    replaced: tuple[str, ...]
    passed_over: tuple[str, ...]


def artifact(path: Path) -> Artifact:
    return Artifact(path.name, sha256_of(path), path.stat().st_size)


def assembly() -> str:
    """Digest the loader and the modules that write wheels: with other code, earlier wheels are stale."""
    here = Path(__file__).parent
    return digest_of(here, [*(here / "runtime").rglob("*.py"), *(here / "wheels").rglob("*.py")])


def patches_of(files: Iterable[PatchFile]) -> tuple[Patch, ...]:
    return tuple(Patch(item.name, item.subject, hashlib.sha256(item.data).hexdigest()) for item in files)


def headers_of(release: Release) -> tuple[str, ...]:
    return tuple(f"{item.name}=={item.version}" for item in release.header_packages)


def source_of(tree: SourceTree) -> str:
    return f"{tree.kind.value}: {tree.identity}; {tree.proof.value}"


def provenance(
    release: Release,
    tree: SourceTree,
    patches: tuple[PatchFile, ...],
    overlay: Overlay | None,
    checks: tuple[Check, ...],
    toolchain: Toolchain,
    platform: str,
) -> Provenance:
    return Provenance(
        schema=SCHEMA,
        release=release.version,
        version=release.patched_version,
        commit=release.commit,
        source=source_of(tree),
        source_tree=tree.base,
        libtorch_cuda_build_ids=overlay.made_for if overlay else release.wheel.libtorch_cuda_build_ids,
        series=release.series,
        patches=patches_of(patches),
        headers=headers_of(release) if overlay else (),
        compiler=toolchain.identity if overlay else "",
        linker=linker(toolchain.cxx) if overlay else "",
        flags=overlay.flags if overlay else (),
        units=tuple(UnitRecord(item.unit, item.why, item.sha256) for item in overlay.objects) if overlay else (),
        soname=overlay.soname if overlay else "",
        overlay_sha256=overlay.sha256 if overlay else "",
        overlay_build_id=overlay.build_id if overlay else "",
        assembly=assembly(),
        platform=platform,
        checks=checks,
    )


def encode(value: object) -> bytes:
    """Return JSON that people can read."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def write_json(path: Path, value: object) -> Path:
    with atomic_write(path) as part:
        part.write_bytes(encode(value))
    return path


def read_json(path: Path, form: type[T]) -> T | None:
    """Return what `write_json` wrote, None if it is not there or has another form."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=form)
    except (OSError, msgspec.DecodeError):
        return None


def place(folder: Path, python: str) -> Path:
    return folder / f"build-{python}.json"


def write(record: BuildRecord, folder: Path) -> Path:
    """Write the record into `folder`, as `build.json` and under the name of its Python; return the first path."""
    write_json(place(folder, record.python), record)
    return write_json(folder / NAME, record)


def read(folder: Path, python: str = "") -> BuildRecord | None:
    """Return the record of the last build in `folder`, or of the last one for `python`; None if it cannot be read."""
    for path in (place(folder, python), folder / NAME) if python else (folder / NAME,):
        found = read_json(path, BuildRecord)
        if found and found.python == (python or found.python):
            return found
    return None
