"""Import stubs of NCCL and the CUDA runtime, so that linking needs none of their 200 MB.

A stub exports exactly what the wheel's own libraries import from the real library, with the same symbol versions:
an overlay that links against it asks for nothing that stock does not ask for as well.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from build.errors import CompileError
from build.overlay.model import Inputs
from build.overlay.symbols import Symbol, needed, table
from build.overlay.toolchain import run_compiler

#: Prefix of the functions of each library outside the wheel that host units call.
_PREFIXES = {"libnccl.so": ("nccl", "pnccl"), "libcudart.so": ("cuda",)}
_IMPORTERS = ("libtorch_cuda.so", "libc10_cuda.so")


def _imports(inputs: Inputs, prefixes: tuple[str, ...]) -> list[Symbol]:
    """Return what the wheel's libraries import under `prefixes`, one of each name."""
    found: dict[str, Symbol] = {}
    for name in _IMPORTERS:
        for item in table(inputs.lib / name, dynamic=True):
            if item.kind == "U" and item.name.startswith(prefixes):
                found[item.name] = item
    return [found[name] for name in sorted(found)]


def _version_script(symbols: list[Symbol]) -> str:
    """Return the linker's version script that gives each symbol its version."""
    by_version: dict[str, list[str]] = defaultdict(list)
    for item in symbols:
        if item.version:
            by_version[item.version].append(item.name)
    blocks = [f"{version} {{ global: {'; '.join(names)}; }};" for version, names in sorted(by_version.items())]
    return "\n".join(blocks) + "\n"


def _stub(inputs: Inputs, soname: str, symbols: list[Symbol], folder: Path) -> Path:
    """Compile one stub library."""
    source, script, target = folder / f"{soname}.c", folder / f"{soname}.map", folder / soname
    source.write_text("".join(f"void {item.name}(void) {{}}\n" for item in symbols), encoding="ascii")
    text = _version_script(symbols)
    script.write_text(text, encoding="ascii")
    versions = [f"-Wl,--version-script={script}"] if text.strip() else []
    command: list[str | Path] = [inputs.toolchain.cxx, "-x", "c", "-shared", "-fPIC", "-nostdlib", "-w"]
    done = run_compiler([*command, f"-Wl,-soname,{soname}", *versions, source, "-o", target], timeout=120)
    if done.returncode:
        raise CompileError(f"the import stub of {soname} cannot be made", cause=done.tail)
    return target


def import_stubs(inputs: Inputs, folder: Path) -> list[Path]:
    """Make the stubs in `folder`, under the sonames the wheel's libraries ask for."""
    sonames = {name for library in _IMPORTERS for name in needed(inputs.lib / library)}
    return [
        _stub(inputs, soname, _imports(inputs, prefixes), folder)
        for stem, prefixes in _PREFIXES.items()
        for soname in sorted(sonames)
        if soname.startswith(stem)
    ]
