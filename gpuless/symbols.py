"""The functions that the imitation has to provide, and C text of those that exist but are not imitated.

Without that text a call that the imitation lacks would reach the real library, with handles of the imitation.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Iterable
from pathlib import Path

from elftools.elf.elffile import ELFFile

from build.overlay.symbols import dynamic
from gpuless.subject import Subject

# A driver function's name as a whole string: c10 and ATen look these up with dlsym.
_DRIVER_NAME = re.compile(rb"\x00(cu[A-Z][a-z][A-Za-z0-9_]{2,60})(?=\x00)")
# These need neither a device nor handles: the real functions are used.
_PASSED_THROUGH = frozenset({"cudaGetErrorName", "cudaGetErrorString", "cudaRuntimeGetVersion", "cudaGetExportTable"})
_CUDA_NOT_SUPPORTED = 801
_NCCL_INVALID_USAGE = 5


def exported(library: Path, prefix: str) -> frozenset[str]:
    """Return the functions with that prefix that a shared library defines."""
    return frozenset(item.name for item in dynamic(library, "TWi") if item.name.startswith(prefix))


def driver_names(library: Path) -> frozenset[str]:
    """Return the CUDA driver functions a library names: linked ones, and strings given to dlsym.

    Strings that are not functions may match too; a superfluous stub is harmless.
    """
    linked = {item.name for item in dynamic(library, "U") if item.name.startswith("cu") and item.name[2:3].isupper()}
    return frozenset(linked | {m.decode() for m in _strings(library)})


def _strings(library: Path) -> set[bytes]:
    with library.open("rb") as stream:
        section = ELFFile(stream).get_section_by_name(".rodata")
        if section is None:
            return set()
        start, size = section["sh_offset"], section["sh_size"]
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as view:
            return {m.group(1) for m in _DRIVER_NAME.finditer(view, start, start + size)}


def driver_source(subject: Subject) -> str:
    """Return C text with one succeeding function per driver symbol that torch looks up."""
    names = sorted(frozenset().union(*(driver_names(lib) for lib in subject.torch_libraries)))
    lines = ["/* Generated: the CUDA driver functions that the installed torch names. */"]
    for name in names:
        if name in {"cuGetErrorString", "cuGetErrorName"}:
            lines.append(f'int {name}(int code, const char **text) {{ *text = "imitated driver"; return 0; }}')
        else:
            lines.append(f"int {name}(void) {{ return 0; }}")
    return "\n".join(lines) + "\n"


def excess(subject: Subject, imitation: Path) -> frozenset[str]:
    """Return the imitated functions that the NCCL of this torch does not have: a caller may look for them."""
    return exported(imitation, "nccl") - exported(subject.nccl, "nccl")


def missing_source(subject: Subject, imitation: Path) -> str:
    """Return C text with a failing, counting stub for each function of CUDA and NCCL that is not imitated.

    Args:
        subject: the probed interpreter.
        imitation: the compiled imitation, whose functions are left out.
    """
    cuda = exported(subject.cudart, "cuda") - exported(imitation, "cuda") - _PASSED_THROUGH
    nccl = exported(subject.nccl, "nccl") - exported(imitation, "nccl")
    lines = [
        "/* Generated: functions of the installed CUDA runtime and NCCL that are not imitated. */",
        "int gpuless_unimplemented(const char *name, int code);",
        *_failing(cuda, _CUDA_NOT_SUPPORTED),
        *_failing(nccl, _NCCL_INVALID_USAGE),
    ]
    return "\n".join(lines) + "\n"


def _failing(names: Iterable[str], code: int) -> list[str]:
    return [f'int {n}(void) {{ return gpuless_unimplemented("{n}", {code}); }}' for n in sorted(names)]
