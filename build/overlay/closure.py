"""The units of an overlay: the patched ones, and those that define hidden symbols of these, or use them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from build.errors import CompileError, NeedsFullBuildError
from build.overlay import reach, touched
from build.overlay.layout import is_header
from build.overlay.model import Inputs, Object
from build.overlay.objects import compile_units
from build.overlay.symbols import defined, defined_among, demangle, undefined

#: Where host units of libtorch_cuda live.
_SEARCH = ("torch/csrc", "aten/src/ATen", "c10")
#: Units that are compiled in search of one hidden symbol before giving up.
_MOST_TRIED = 6
#: Units that are added since they use hidden symbols of others, before giving up.
_MOST_USERS = 12


def hidden_needs(inputs: Inputs, objects: Iterable[Path]) -> frozenset[str]:
    """Return the symbols that `objects` need and that stock has without exporting them.

    The wheels keep their full symbol tables, in which such a symbol is a local one.
    """
    needs = set(undefined(objects))
    for name in inputs.replaceable:
        needs -= defined(inputs.lib / name, dynamic=True).keys()
    found = [item for name in inputs.replaceable for item in defined_among(inputs.lib / name, needs).values()]
    # Size 0: made by the linker, such as _GLOBAL_OFFSET_TABLE_. Standard: parts of a newer libstdc++ that the official
    # build linked statically; this machine's compiler has its own.
    return frozenset(item.name for item in found if item.size and not item.standard)


def _scoped_name(demangled: str) -> tuple[str, str]:
    """Return the enclosing class or namespace and the name of a demangled function or variable."""
    plain = re.sub(r"\[abi:\w+\]|\(.*$", "", demangled.replace("(anonymous namespace)::", ""))
    while re.search(r"<[^<>]*>", plain):
        plain = re.sub(r"<[^<>]*>", "", plain)
    scope, _, name = plain.split()[-1].rpartition("::")
    return scope.rpartition("::")[2], name


def _definers(tree: Path, demangled: str) -> list[str]:
    """Return the units whose text seems to define a symbol, most likely first.

    First those with the body of a function of its name, then those with its qualified name, then those with a variable
    of its name, then those that only declare or call such a function.
    """
    scope, name = (re.escape(part).encode() for part in _scoped_name(demangled))
    unqualified = rb"^[\w:<>,&*~\s]*\b" + name + rb"\s*\("
    body = re.compile(unqualified + rb"[^;{}]*\)[^;{}]*\{", re.M)
    qualified = re.compile(rb"\b" + scope + rb"(<[^<>]*>)?::\s*" + name + rb"\b\s*[({=;]")
    variable = re.compile(rb"^(?!.*\bextern\b)[\w:<>,&*\s]*\b" + name + rb"\s*(=[^=]|\{|;)", re.M)
    mention = re.compile(unqualified, re.M)
    units = [path for root in _SEARCH for path in sorted((tree / root).rglob("*.cpp"))]
    read = ((path, path.read_bytes()) for path in units if "test" not in path.parts)
    texts = {str(path.relative_to(tree)): text for path, text in read if re.search(rb"\b" + name + rb"\b", text)}
    ranks = {
        path: tuple(pattern.search(text) is None for pattern in (body, qualified, variable, mention))
        for path, text in texts.items()
    }
    return [path for path in sorted(ranks, key=lambda path: (ranks[path], path)) if not all(ranks[path])][:_MOST_TRIED]


def _definer(inputs: Inputs, symbol: str, demangled: str, have: Collection[str], why: str) -> Object:
    """Return the compiled unit that defines one hidden symbol: the text only suggests it, the object proves it."""
    tried: list[str] = []
    for unit in (unit for unit in _definers(inputs.tree, demangled) if unit not in have):
        try:
            (made,) = compile_units(inputs, {unit: why})
        except CompileError as error:
            last = (error.cause.splitlines() or [""])[-1]
            tried.append(f"{unit} was tried and does not compile: {last}\n{error.remedy}")
            continue
        if symbol in defined(made.path, dynamic=False):
            return made
        tried.append(f"{unit} was tried and does not define it")
    raise CompileError(
        f"the overlay needs {demangled}, which the official wheel does not export",
        cause="\n".join([f"no unit of the tree defines {symbol}, which is hidden in the wheel's libraries", *tried]),
        remedy="name the unit that defines it under `extra_units` of the release in build/releases.toml",
    )


def compile_closure(inputs: Inputs) -> tuple[Object, ...]:
    """Compile the patched units, the release's extra ones, and the units with hidden symbols that these need.

    For patches of a user also the units whose stock code uses hidden symbols of these; of a series, probes show that
    it is in force.

    Raises:
        CompileError: a unit does not compile, or no unit defines a hidden symbol.
        NeedsFullBuildError: stock code that cannot be in the overlay uses hidden symbols of its units.
    """
    units = dict(inputs.units)
    units |= {unit.path: unit.reason for unit in inputs.release.extra_units if unit.path not in units}
    done = {item.unit: item for item in compile_units(inputs, units)}
    _add_needed(inputs, done)
    if inputs.release.series:
        return tuple(done.values())
    for _ in range(_MOST_USERS):
        if not (found := _concerned(inputs, done)):
            return tuple(done.values())
        _add_user(inputs, done, found)
        _add_needed(inputs, done)
    _refuse_users(_concerned(inputs, done))
    return tuple(done.values())


def _concerned(inputs: Inputs, done: Mapping[str, Object]) -> dict[str, frozenset[str]]:
    """Return the hidden symbols that stock code uses and that the overlay has otherwise, with their users."""
    found = reach.users(inputs, done.values())
    names = demangle(found) if found else {}
    concerned = {}
    for unit, item in done.items():
        mine = {name: symbol for name, symbol in defined(item.path, dynamic=False).items() if name in found}
        spared = _spared(inputs, unit) if mine else frozenset[str]()
        for name, symbol in mine.items():
            if symbol.kind != "T" or _scoped_name(names[name])[1] not in spared:
                concerned[name] = found[name]
    return concerned


def _spared(inputs: Inputs, unit: str) -> frozenset[str]:
    """Return the functions of a unit that the patch does not concern: none, if it changes a header that is not safe."""
    if any(is_header(path) and path not in inputs.safe_headers for path in inputs.changed):
        return frozenset()
    new = (inputs.tree / unit).read_text(encoding="utf-8", errors="surrogateescape")
    return touched.spared(inputs.originals.get(unit, new), new)


def _add_needed(inputs: Inputs, done: dict[str, Object]) -> None:
    """Add the units that define hidden symbols which those of `done` need."""
    while needs := hidden_needs(inputs, [item.path for item in done.values()]):
        symbol = min(needs)
        spelt = demangle([symbol])[symbol]
        found = _definer(inputs, symbol, spelt, done, f"defines {spelt}, which stock does not export")
        done[found.unit] = found


def _add_user(inputs: Inputs, done: dict[str, Object], found: Mapping[str, frozenset[str]]) -> None:
    """Add a unit whose stock code uses hidden symbols of those of `done`, and would not see the overlay's."""
    symbol, users = min(found.items(), key=lambda item: (len(item[1]), item[0]))
    names = demangle([symbol, *users])
    for user in sorted(users, key=lambda name: (names[name].startswith("std::"), len(name))):
        with contextlib.suppress(CompileError):
            made = _definer(inputs, user, names[user], done, f"uses {names[symbol]}, which stock does not export")
            done[made.unit] = made
            return
    _refuse_users(found)


def _refuse_users(found: Mapping[str, frozenset[str]]) -> None:
    """Raise NeedsFullBuildError for hidden symbols that stock code uses; do nothing if there are none."""
    if found:
        raise NeedsFullBuildError(
            "stock code outside the overlay uses hidden symbols of its units",
            cause="\n".join(reach.spelt(found)),
            remedy="that code was linked to the stock copy and would not see the patch: change a function that is "
            "exported (TORCH_API), or make a full build",
        )
