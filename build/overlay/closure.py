"""The units of an overlay: the patched ones, and those that define hidden symbols of these, or use them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from build.errors import CompileError, NeedsFullBuildError
from build.overlay import differing, reach
from build.overlay.model import Inputs, Object
from build.overlay.pool import Pool, compiling
from build.overlay.symbols import defined, demangle, exported, names, scoped_name, undefined

#: Units that are added since they use hidden symbols of others, before giving up.
_MOST_USERS = 12
#: Where the host units of all libraries live.
_SEARCH = ("torch/csrc", "aten/src/ATen", "c10")
#: Units that are compiled in search of one hidden symbol before giving up.
_MOST_TRIED = 6


class Definers:
    """The texts of a tree's host units, read once: there are 40 MB of them."""

    def __init__(self, tree: Path) -> None:
        self._tree = tree

    @cached_property
    def _texts(self) -> dict[str, bytes]:
        units = [path for root in _SEARCH for path in sorted((self._tree / root).rglob("*.cpp"))]
        return {str(path.relative_to(self._tree)): path.read_bytes() for path in units if "test" not in path.parts}

    def of(self, demangled: str) -> list[str]:
        """Return the units whose text seems to define a symbol, most likely first.

        First those with the body of a function of its name, then those with its qualified name, then those with a
        variable of its name, then those that only declare or call such a function.
        """
        scope, name = (re.escape(part).encode() for part in scoped_name(demangled))
        # No \b: it needs a letter, and `~Holder` begins with none, as `operator==` ends with none.
        whole = rb"(?<!\w)" + name + rb"(?!\w)"
        # In one line: over several, a table of numbers takes minutes.
        unqualified = rb"^(?:extern\s+\"C\"\s)?[\w:<>,&*~ \t]*" + whole + rb"\s*\("
        body = re.compile(unqualified + rb"[^;{}]*\)[^;{}]*\{", re.M)
        qualified = re.compile(rb"\b" + scope + rb"(<[^<>]*>)?::\s*" + whole + rb"\s*[({=;]")
        variable = re.compile(rb"^(?!.*\bextern\b)[\w:<>,&* \t]*" + whole + rb"\s*(=[^=]|\{|;)", re.M)
        mention = re.compile(unqualified, re.M)
        literal, word = scoped_name(demangled)[1].encode(), re.compile(whole)
        texts = {path: text for path, text in self._texts.items() if literal in text and word.search(text)}
        ranks = {
            path: tuple(pattern.search(text) is None for pattern in (body, qualified, variable, mention))
            for path, text in texts.items()
        }
        fit = (path for path in sorted(ranks, key=lambda path: (ranks[path], path)) if not all(ranks[path]))
        return list(fit)[:_MOST_TRIED]


def hidden_needs(inputs: Inputs, objects: Iterable[Path]) -> frozenset[str]:
    """Return the symbols that `objects` need and that stock has without exporting them.

    The wheels keep their full symbol tables, in which such a symbol is a local one.
    """
    libraries = [inputs.lib / name for name in inputs.replaceable]
    missing = undefined(objects).difference(*(exported(library).keys() for library in libraries))
    found = [defined(library)[name] for library in libraries for name in missing & defined(library).keys()]
    # Size 0: made by the linker, such as _GLOBAL_OFFSET_TABLE_. Standard: parts of a newer libstdc++ that the official
    # build linked statically; this machine's compiler has its own.
    return frozenset(item.name for item in found if item.size and not item.standard)


def _spelt(symbols: Collection[str]) -> dict[str, str]:
    return demangle(symbols) if symbols else {}


@dataclass(frozen=True, slots=True)
class _Work:
    """Inputs of the search for further units."""

    inputs: Inputs
    pool: Pool
    definers: Definers


def _definer(work: _Work, symbol: str, demangled: str, have: Collection[str], why: str) -> Object:
    """Return the compiled unit that defines one hidden symbol: the text only suggests it, the object proves it."""
    tried: list[str] = []
    for unit in (unit for unit in work.definers.of(demangled) if unit not in have):
        try:
            (made,) = work.pool.compile({unit: why})
        except CompileError as error:
            last = (error.cause.splitlines() or [""])[-1]
            tried.append(f"{unit} was tried and does not compile: {last}\n{error.remedy}")
            continue
        if symbol in names(made.path).defined:
            return made
        tried.append(f"{unit} was tried and does not define it")
    raise CompileError(
        f"the overlay needs {demangled}, which the official wheel does not export",
        cause="\n".join([f"no unit of the tree defines {symbol}, which is hidden in the wheel's libraries", *tried]),
        remedy="do what the cause says of a unit that does not compile; or name the unit that defines it under "
        "`extra_units` of the release in build/releases.toml",
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
    definers = Definers(inputs.tree)
    with compiling(inputs) as pool:
        work, done = _Work(inputs, pool, definers), {item.unit: item for item in pool.compile(units)}
        _add_needed(work, done)
        if not inputs.release.series:
            _add_users(work, done)
    return tuple(done.values())


def _add_users(work: _Work, done: dict[str, Object]) -> None:
    """Add the units whose stock code uses hidden symbols of those of `done`, and what they need in turn."""
    for _ in range(_MOST_USERS):
        if not (found := _concerned(work.inputs, done)):
            return
        _add_user(work, done, found)
        _add_needed(work, done)
    _refuse_users(_concerned(work.inputs, done))


def _concerned(inputs: Inputs, done: Mapping[str, Object]) -> dict[str, frozenset[str]]:
    """Return the hidden symbols that stock code uses and that the overlay has otherwise, with their users."""
    found = reach.users(inputs, done.values())
    same = differing.same(inputs, done.values(), found) if found else frozenset[str]()
    return {name: callers for name, callers in found.items() if name not in same}


def _add_needed(work: _Work, done: dict[str, Object]) -> None:
    """Add the units that define hidden symbols which those of `done` need."""
    while needs := hidden_needs(work.inputs, [item.path for item in done.values()]):
        symbol = min(needs)
        spelt = demangle([symbol])[symbol]
        found = _definer(work, symbol, spelt, done, f"defines {spelt}, which stock does not export")
        done[found.unit] = found


def _fewest_users(found: Mapping[str, frozenset[str]]) -> tuple[str, dict[str, str]]:
    """Return the hidden symbol with the fewest users, and these with their plain names, likely ones first."""
    symbol, users = min(found.items(), key=lambda item: (len(item[1]), item[0]))
    spelt = _spelt([symbol, *users])
    ordered = sorted(users, key=lambda name: (spelt[name].startswith("std::"), len(name)))
    return spelt[symbol], {name: spelt[name] for name in ordered}


def _add_user(work: _Work, done: dict[str, Object], found: Mapping[str, frozenset[str]]) -> None:
    """Add a unit whose stock code uses hidden symbols of those of `done`, and would not see the overlay's."""
    symbol, users = _fewest_users(found)
    tried: list[str] = []
    for user, plain in users.items():
        try:
            made = _definer(work, user, plain, done, f"uses {symbol}, which stock does not export")
        except CompileError as error:
            tried += error.cause.splitlines()[1:]
            continue
        done[made.unit] = made
        return
    _refuse_users(found, tried)


def _refuse_users(found: Mapping[str, frozenset[str]], tried: Iterable[str] = ()) -> None:
    """Raise NeedsFullBuildError for hidden symbols that stock code uses; do nothing if there are none."""
    if found:
        raise NeedsFullBuildError(
            "stock code outside the overlay uses hidden symbols of its units",
            cause="\n".join([*reach.spelt(found), *dict.fromkeys(tried)]),
            remedy="that code was linked to the stock copy and would not see the patch: make its unit compile, change "
            "a function that is exported (TORCH_API), or make a full build",
        )
