"""Installed headers whose change leaves code outside of the overlay with another class, value or body.

Extensions are compiled against `torch/include`, and bind stock's functions: the overlay is in the scope of torch's own
libraries only. So what they have compiled in of a header must be the same with and without the patch.
"""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

from build.console import counted, step
from build.errors import CompileError, NeedsFullBuildError
from build.overlay import debug_types, declarations, layout
from build.overlay.flags import code_flags, path_flags, said_flags
from build.overlay.model import Check, Inputs
from build.overlay.objects import compile_failure, jobs, override_headers, with_submodules
from build.overlay.toolchain import run_compiler
from build.process import run_together

_REBUILT = "--extensions-rebuilt"
_WHO = (
    "extensions that include it have stock's form compiled in, and bind stock's functions; so do those that are "
    "compiled anew, unless they are linked to the overlay before torch's libraries"
)
_REMEDY = (
    "keep the header as it is: put what is new into a unit, or beside what is there; or have each extension that "
    f"includes it compiled anew and linked to the overlay first, and say so: {_REBUILT} (docs/any-patch.md)"
)
#: Debug information of all types of a header, used or not, in a program that never runs; the linker relocates it.
_DEBUG = ("-O0", "-g", "-fno-eliminate-unused-debug-types", "-nostdlib", "-no-pie")
_WHOLE_CLASSES = {True: "-fstandalone-debug", False: "-femit-class-debug-always"}
_LINK = ("--unresolved-symbols=ignore-all", "-e0", "--defsym=__dso_handle=0")


def _probe(inputs: Inputs, header: str, overrides: Path, target: Path) -> dict[str, debug_types.Layout]:
    """Return the types of a header and of all that it includes; headers in the folder `overrides` come first."""
    source = target.with_suffix(".cpp")
    source.write_text(f"#include <{layout.installed(header)}>\n", encoding="utf-8")
    whole = _WHOLE_CLASSES["clang" in inputs.toolchain.identity]
    flags = (*code_flags(inputs.release), *said_flags(inputs.defines), *_DEBUG, whole)
    line: list[str | Path] = [inputs.toolchain.cxx, *flags, *(f"-Wl,{item}" for item in _LINK)]
    done = run_compiler([*line, *path_flags(inputs, overrides), source, "-o", target], timeout=1800)
    if done.returncode:
        raise compile_failure(inputs, f"{header}, included alone", done)
    return debug_types.read(target)


def _types(inputs: Inputs, header: str, overrides: Path) -> dict[str, debug_types.Layout]:
    return with_submodules(inputs, lambda given: _probe(given, header, overrides, overrides / "probe"))


def _layouts(inputs: Inputs, header: str) -> list[str]:
    """Return the types that have another layout with the patched headers than with the wheel's."""
    with tempfile.TemporaryDirectory(prefix="layouts-") as scratch:
        folders = [Path(scratch) / name for name in ("stock", "patched")]
        for folder in folders:
            folder.mkdir()
        override_headers(inputs, folders[1])
        probes = [partial(_types, inputs, header, folder) for folder in folders]
        before, after = run_together(probes, jobs(inputs.jobs))
    return debug_types.differences(before, after)


def _differing(inputs: Inputs, header: str) -> list[str]:
    """Return what a header has otherwise, from its text if that tells, else from debug information."""
    new = (inputs.tree / header).read_text(encoding="utf-8", errors="surrogateescape")
    if (found := declarations.differing(inputs.originals[header], new)) is not None:
        return found
    if inputs.extensions_rebuilt:
        return ["its types were not compared"]
    step(f"comparing the types of {header} with the official wheel's")
    try:
        return _layouts(inputs, header)
    except CompileError as error:
        raise CompileError(error.what, cause=error.cause, remedy=f"{error.remedy}; or {_REMEDY}") from None


def check_headers(inputs: Inputs) -> Check:
    """Compare the installed headers that the patches change with those of the wheel.

    Raises:
        NeedsFullBuildError: a layout, a table of virtual functions, an inlined body or a value differs, and neither
            does the series' manifest declare the header safe, nor are extensions said to be rebuilt.
        CompileError: a header cannot be compiled alone, so that its types cannot be compared.
    """
    changed = [path for path in sorted(inputs.changed) if layout.is_header(path) and path not in inputs.safe_headers]
    installed = [path for path in changed if (inputs.include / layout.installed(path)).is_file()]
    found = {path: lines for path in installed if (lines := _differing(inputs, path))}
    if found and not inputs.extensions_rebuilt:
        raise NeedsFullBuildError(
            "the patch changes what extensions have compiled in of installed headers",
            cause="\n".join([*(f"{path}: {line}" for path in found for line in found[path]), _WHO]),
            remedy=_REMEDY,
        )
    said = [f"every extension that includes {path} must be compiled anew: {'; '.join(found[path])}" for path in found]
    same = f"{counted(len(installed) - len(found), 'changed header')} as extensions have compiled it in"
    return Check("extensions see no other layout, body or value", True, "; ".join([*said, same]))
