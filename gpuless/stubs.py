"""C text of the functions that exist but are not imitated: the driver's, and the rest of CUDA and NCCL.

Without them a call that the imitation lacks would reach the real library, with handles of the imitation.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from gpuless import symbols
from gpuless.subject import Subject

# These need neither a device nor handles: the real functions are used.
_PASSED_THROUGH = frozenset({"cudaGetErrorName", "cudaGetErrorString", "cudaRuntimeGetVersion", "cudaGetExportTable"})
_CUDA_NOT_SUPPORTED = 801
_NCCL_INVALID_USAGE = 5


def driver_source(subject: Subject) -> str:
    """Return C text with one succeeding function per driver symbol that torch looks up."""
    names = sorted(frozenset().union(*(symbols.driver_names(lib) for lib in subject.torch_libraries)))
    lines = ["/* Generated: the CUDA driver functions that the installed torch names. */"]
    for name in names:
        if name in {"cuGetErrorString", "cuGetErrorName"}:
            lines.append(f'int {name}(int code, const char **text) {{ *text = "imitated driver"; return 0; }}')
        else:
            lines.append(f"int {name}(void) {{ return 0; }}")
    return "\n".join(lines) + "\n"


def excess(subject: Subject, imitation: Path) -> frozenset[str]:
    """Return the imitated functions that the NCCL of this torch does not have: a caller may look for them."""
    return symbols.exported(imitation, "nccl") - symbols.exported(subject.nccl, "nccl")


def missing_source(subject: Subject, imitation: Path) -> str:
    """Return C text with a failing, counting stub for each function of CUDA and NCCL that is not imitated.

    Args:
        subject: the probed interpreter.
        imitation: the compiled imitation, whose functions are left out.
    """
    cuda = symbols.exported(subject.cudart, "cuda") - symbols.exported(imitation, "cuda") - _PASSED_THROUGH
    nccl = symbols.exported(subject.nccl, "nccl") - symbols.exported(imitation, "nccl")
    lines = [
        "/* Generated: functions of the installed CUDA runtime and NCCL that are not imitated. */",
        "int gpuless_unimplemented(const char *name, int code);",
        *_failing(cuda, _CUDA_NOT_SUPPORTED),
        *_failing(nccl, _NCCL_INVALID_USAGE),
    ]
    return "\n".join(lines) + "\n"


def _failing(names: Iterable[str], code: int) -> list[str]:
    return [f'int {n}(void) {{ return gpuless_unimplemented("{n}", {code}); }}' for n in sorted(names)]
