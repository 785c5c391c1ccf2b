"""Device code in an overlay: compiled by nvcc of the wheel's CUDA release, for the architectures of the stock library.

Shown on a small CUDA library; not verified with PyTorch, so `build.anypatch.plan` refuses device code of it.

A kernel is called through its host function. From CUDA 13 on nvcc hides that function unless VISIBLE is given, as the
stock library was compiled: then it is replaced as other functions are; else the exported functions that launch the
kernel are, which are in the same unit. Each library registers its device code with the runtime when it is loaded.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from pathlib import Path

from elftools.elf.elffile import ELFFile

from build.errors import CompileError, EnvironmentUnfitError, WheelError
from build.overlay.toolchain import Toolchain, run_compiler

#: The first CUDA release whose compiler is on the package index.
FIRST_CUDA = 13
#: The flag with which host functions of kernels are exported.
VISIBLE = "--device-entity-has-hidden-visibility=false"
_SECTION = ".nv_fatbin"
_MAGIC = 0xBA55ED50
#: Magic, version, size of this header, size of all that follows it.
_CONTAINER = struct.Struct("<IHHQ")
#: Kind, attributes, size of this header, size of the code, compressed size, options, minor, major, architecture.
_ENTRY = struct.Struct("<HHIQIIHHI")
_KINDS = {1: "compute", 2: "sm"}


def check_cuda(cuda: str) -> None:
    """Raise EnvironmentUnfitError for a CUDA release, e.g. `12.4`, whose device code cannot be compiled without it."""
    if int(cuda.partition(".")[0]) < FIRST_CUDA:
        raise EnvironmentUnfitError(
            f"device code of CUDA {cuda} cannot be compiled here",
            cause=f"the index has no nvcc before CUDA {FIRST_CUDA}, and clang 16 cannot read libcu++ of CUDA 12",
            remedy="take the device code out of the patch, or make a full build with the CUDA toolkit",
        )


def architectures(library: Path) -> frozenset[str]:
    """Return what a library or object has device code for: `sm_90` is machine code, `compute_90` is PTX.

    Raises:
        WheelError: the section of device code is not laid out as expected.
    """
    with library.open("rb") as stream:
        section = ELFFile(stream).get_section_by_name(_SECTION)
        data = section.data() if section else b""
    found: set[str] = set()
    at = 0
    while at + _CONTAINER.size <= len(data):
        magic, _, header, size = _CONTAINER.unpack_from(data, at)
        if magic != _MAGIC:
            at += 8  # containers are aligned
            continue
        if header < _CONTAINER.size or at + header + size > len(data):
            raise WheelError(f"{library.name} has device code of another layout", cause="a newer CUDA release")
        found |= _entries(data[at + header : at + header + size])
        at += header + size
    return frozenset(found)


def _entries(data: bytes) -> set[str]:
    found: set[str] = set()
    at = 0
    while at + _ENTRY.size <= len(data):
        kind, _, header, size, _, _, _, _, architecture = _ENTRY.unpack_from(data, at)
        if kind in _KINDS:
            found.add(f"{_KINDS[kind]}_{architecture}")
        at += max(header + size, _ENTRY.size)
    return found


def compile_unit(
    nvcc: Path, toolchain: Toolchain, source: Path, target: Path, wanted: Iterable[str], flags: Iterable[str] = ()
) -> None:
    """Compile one `.cu` file into an object for a shared library.

    Args:
        wanted: as `architectures` returns them for the stock library.
        flags: those of the host code, such as macros and include paths.

    Raises:
        CompileError: nvcc fails, or the object lacks an architecture.
    """
    wanted = sorted(wanted)
    codes = [f"-gencode=arch=compute_{item.partition('_')[2]},code={item}" for item in wanted]
    line: list[str | Path] = [nvcc, "-ccbin", toolchain.cxx, "-cudart=shared", "-Xcompiler=-fPIC", *codes, *flags]
    done = run_compiler([*line, "-c", source, "-o", target], timeout=1800)
    if done.returncode:
        raise CompileError(f"{source.name} does not compile", cause=done.tail, remedy="read the command in the log")
    if missing := set(wanted) - architectures(target):
        raise CompileError(f"{source.name} was not compiled for {', '.join(sorted(missing))}", cause="another nvcc")
