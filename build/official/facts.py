"""Facts of an official wheel, read member by member from the remote file, without a download of its 770 MB."""

from __future__ import annotations

import io
import re
import zipfile
from dataclasses import dataclass, replace
from email.parser import BytesParser
from pathlib import Path
from typing import IO, BinaryIO

from msgspec import structs
from packaging.requirements import Requirement
from packaging.version import Version

from build.console import step
from build.errors import SourceError, WheelError
from build.official.index import IndexFile, files
from build.official.transfer import opened
from build.releases import OfficialWheel
from build.runtime.multiworld_torch_overlay._load import note_build_id, note_segments

_BLOCK = 1 << 20
_CUDA_LIBRARY = "torch/lib/libtorch_cuda.so"
_MACHINE = {"platform_system": "Linux", "platform_machine": "x86_64", "sys_platform": "linux"}


@dataclass(frozen=True, slots=True)
class WheelFacts:
    """The facts that an official wheel contains.

    Attributes:
        wheel: as `build/releases.toml` has it; `local`, `cuda` and `nccl` are empty for a CPU build, the digests are
            the index's, and the build ids are empty when they were not read.
        commit: `torch.version.git_version`.
        cxx_standard: C++ standard its headers need.
        requires: pinned distributions that the wheel needs on x86_64 Linux, `name` to `version`.
    """

    wheel: OfficialWheel
    commit: str
    cxx_standard: int
    requires: dict[str, str]


def versions() -> tuple[str, ...]:
    """Return the PyTorch releases with an x86_64 Linux wheel on the index, oldest first."""
    found = {file.version for file in files("torch") if "x86_64" in file.name}
    return tuple(sorted((item for item in found if not Version(item).local), key=Version))


def published(version: str) -> dict[str, IndexFile]:
    """Return the official wheels of one version by CPython version, oldest first."""
    found: dict[str, IndexFile] = {}
    for file in files("torch"):
        # Plain wheels (not free-threaded) of Linux on x86_64.
        match = re.search(r"-cp(\d)(\d+)-cp\1\2m?-.*linux.*_x86_64\.whl$", file.name)
        python = f"{match[1]}.{match[2]}" if match else None
        if file.version == version and python and file.sha256:
            found.setdefault(python, file)
    if not found:
        cause = "it has " + ", ".join(versions())
        raise SourceError(f"the index has no x86_64 Linux wheel of torch {version}", cause=cause)
    return {key: found[key] for key in sorted(found, key=Version)}


def _assigned(text: str, name: str) -> str:
    match = re.search(rf"^{name}\b[^=\n]*=\s*['\"]([^'\"]*)['\"]", text, re.MULTILINE)
    return match[1] if match else ""


def needs(stream: BinaryIO) -> tuple[Requirement, ...]:
    """Return the requirements of a wheel that hold on x86_64 Linux, extras left out."""
    with zipfile.ZipFile(stream) as archive:
        name = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = BytesParser().parsebytes(archive.read(name)).get_all("Requires-Dist", [])
    every = map(Requirement, lines)
    return tuple(need for need in every if need.marker is None or need.marker.evaluate({**_MACHINE, "extra": ""}))


def exact(need: Requirement) -> str:
    """Return the version that a requirement pins, empty if it leaves a choice."""
    return next((item.version for item in need.specifier if item.operator == "=="), "")


def requirements(version: str, python: str, local: Path | None = None) -> tuple[Requirement, ...]:
    """Return what the official wheel of a release requires on x86_64 Linux.

    Args:
        local: the wheel, if it is on this machine; else its METADATA is read from the index.

    Raises:
        SourceError: the index has no such release.
        EnvironmentUnfitError: no network.
    """
    if local is not None:
        with local.open("rb") as stream:
            return needs(stream)
    offered = published(version)
    with opened(offered.get(python, list(offered.values())[-1]).url) as stream:
        return needs(stream)


def _cxx_standard(archive: zipfile.ZipFile) -> int:
    text = archive.read("torch/share/cmake/Torch/TorchConfig.cmake")
    found = re.search(rb"CXX_STANDARD (\d+)|cxx_std_(\d+)", text)
    if found is None:
        raise WheelError("TorchConfig.cmake names no C++ standard")
    return int(found[1] or found[2])


def _read(stream: BinaryIO, version: str) -> WheelFacts:
    requires = {need.name: exact(need) for need in needs(stream) if exact(need)}
    with zipfile.ZipFile(stream) as archive:
        text = archive.read("torch/version.py").decode()
        # The ABI, from libc10's own symbols: the constructors of c10::Error take a `std::string`.
        names = re.findall(rb"_ZN3c105ErrorC[12][\w]+", archive.read("torch/lib/libc10.so"))
        if not names:
            raise WheelError("libc10.so has no constructor of c10::Error: its ABI is unknown")
        standard, abi = _cxx_standard(archive), any(b"__cxx11" in name for name in names)
    nccl = next((pin for name, pin in requires.items() if name.startswith("nvidia-nccl-")), "")
    wheel = OfficialWheel(
        version=version,
        local=_assigned(text, "__version__").partition("+")[2],
        pythons=(),
        cxx11_abi=abi,
        nccl=nccl,
        cuda=_assigned(text, "cuda"),
        libtorch_cuda_build_ids={},
        sha256={},
    )
    return WheelFacts(wheel, _assigned(text, "git_version"), standard, requires)


def read_build_id(stream: IO[bytes]) -> str:
    """Return the GNU build id of a shared library.

    patchelf has moved the note of the official libraries behind their code, so most of the file is read.
    """
    for offset, length in sorted(note_segments(io.BytesIO(stream.read(_BLOCK)))):
        stream.seek(offset)
        if found := note_build_id(stream.read(length)):
            return found
    raise WheelError("the library has no GNU build id")


def _remote_build_id(file: IndexFile) -> str:
    step(f"reading the build id in {file.name}")
    with opened(file.url) as stream, zipfile.ZipFile(stream) as archive:
        if _CUDA_LIBRARY not in archive.namelist():
            return ""
        with archive.open(_CUDA_LIBRARY) as library:
            return read_build_id(library)


def read_facts(version: str, *, build_ids: bool = True) -> WheelFacts:
    """Read the facts of a release's official wheels.

    Args:
        build_ids: read the build ids of libtorch_cuda.so as well. They are near the library's end, so its
            compressed form, half of each wheel, is streamed; nothing is stored.

    Raises:
        SourceError: the index has no such release, or its server does not support range requests.
        EnvironmentUnfitError: no network.
        WheelError: the layout of the wheel is unknown.
    """
    offered = published(version)
    newest = list(offered.values())[-1]
    step(f"reading the facts of {newest.name}")
    with opened(newest.url) as stream:
        facts = _read(stream, version)
    identities = {python: _remote_build_id(file) for python, file in offered.items()} if build_ids else {}
    digests = {python: item.sha256 for python, item in offered.items()}
    whole = structs.replace(facts.wheel, pythons=tuple(offered), sha256=digests, libtorch_cuda_build_ids=identities)
    return replace(facts, wheel=whole)
