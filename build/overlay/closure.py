"""Which units have to come along: those that define the hidden symbols which the patched units need."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from build.errors import CompileError
from build.overlay.model import Inputs, Object
from build.overlay.objects import compile_units
from build.overlay.symbols import defined, demangle, undefined

#: Libraries of the wheel whose code may be needed.
LIBRARIES = ("libtorch_cuda.so", "libtorch_cpu.so", "libc10_cuda.so", "libc10.so")
#: Where host units of libtorch_cuda live.
_SEARCH = ("torch/csrc", "aten/src/ATen", "c10")


def hidden_needs(inputs: Inputs, objects: Iterable[Path]) -> frozenset[str]:
    """Return the symbols that `objects` need and stock has, but exports from no library.

    The wheels keep their full symbol tables, in which such a symbol is a local one.
    """
    needs = undefined(objects)
    exported: set[str] = set()
    local: set[str] = set()
    for name in LIBRARIES:
        exported |= defined(inputs.lib / name, dynamic=True).keys()
        if needs - exported:
            # Size 0: what the linker makes itself, such as _GLOBAL_OFFSET_TABLE_. Standard: parts of a newer libstdc++
            # that the official build linked statically; this machine's compiler brings its own.
            table = defined(inputs.lib / name, dynamic=False).items()
            local |= {symbol for symbol, item in table if item.size and not item.standard}
    return frozenset((needs - exported) & local)


def _scoped_name(demangled: str) -> tuple[str, str]:
    """Return the enclosing class or namespace and the name of a demangled function or variable."""
    plain = re.sub(r"\[abi:\w+\]|\(.*$", "", demangled.replace("(anonymous namespace)::", ""))
    while re.search(r"<[^<>]*>", plain):
        plain = re.sub(r"<[^<>]*>", "", plain)
    scope, _, name = plain.split()[-1].rpartition("::")
    return scope.rpartition("::")[2], name


def _definers(tree: Path, demangled: str) -> list[str]:
    """Return the units whose text seems to define a symbol, by the way C++ writes an out-of-class definition."""
    scope, name = _scoped_name(demangled)
    qualified = rb"\b" + re.escape(scope).encode() + rb"(<[^<>]*>)?::\s*" + re.escape(name).encode() + rb"\b"
    free = rb"^[\w:<>,&*\s]*\b" + re.escape(name).encode() + rb"\s*\("
    member = re.compile(qualified + rb"\s*[({=]")
    function = re.compile(free, re.M)
    units = [path for root in _SEARCH for path in sorted((tree / root).rglob("*.cpp"))]
    texts = {path: path.read_bytes() for path in units if "test" not in path.parts}
    found = [path for path, text in texts.items() if name.encode() in text and member.search(text)]
    found = found or [path for path, text in texts.items() if name.encode() in text and function.search(text)]
    return [str(path.relative_to(tree)) for path in found]


def _unit_for(inputs: Inputs, symbol: str, demangled: str, have: Iterable[str]) -> str:
    """Return the unit to add for one hidden symbol.

    Raises:
        CompileError: no unit of the tree seems to define it.
    """
    candidates = [unit for unit in _definers(inputs.tree, demangled) if unit not in set(have)]
    if candidates:
        return candidates[0]
    raise CompileError(
        f"the overlay needs {demangled}, which the official wheel keeps to itself",
        cause=f"the symbol {symbol} is hidden in the wheel's libraries, and no unit of the tree seems to define it",
        remedy="name the unit that defines it under `extra_units` of the release in build/releases.toml",
    )


def compile_closure(inputs: Inputs, patched: Iterable[str]) -> tuple[Object, ...]:
    """Compile the patched units, the release's extra ones, and what these need that stock does not export.

    Args:
        inputs: the build's inputs.
        patched: the units that the series changes.

    Returns:
        All objects of the overlay, each with the reason why it is there.

    Raises:
        CompileError: a unit does not compile, or a hidden symbol has no unit that defines it.
    """
    units = dict.fromkeys(patched, "changed by the series")
    units |= {unit.path: unit.reason for unit in inputs.release.extra_units if unit.path not in units}
    done: dict[str, Object] = {}
    while True:
        missing = {unit: why for unit, why in units.items() if unit not in done}
        done |= {item.unit: item for item in compile_units(inputs, missing)}
        needs = hidden_needs(inputs, [item.path for item in done.values()])
        if not needs:
            return tuple(done[unit] for unit in units)
        spelt = demangle(needs)
        symbol = min(needs)
        unit = _unit_for(inputs, symbol, spelt[symbol], units)
        units[unit] = f"defines {spelt[symbol]}, which stock does not export ({len(needs)} hidden symbols in all)"
