"""Find hidden functions whose stock copies stay valid."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from build.overlay import state, touched
from build.overlay.definers import scoped_name
from build.overlay.effect import expanded
from build.overlay.layout import is_header
from build.overlay.model import Inputs, Object
from build.overlay.symbols import demangle, exported, names

#: Letters of `nm`: weak, so mostly of headers; local to the object.
_WEAK, _LOCAL = "WVu", "tdbr"
_KINDS = "TWtDBRVudbr"
#: Labels of the compiler; the texts of types' names, which are what the symbols say.
_SAME = re.compile(r"\.|_ZTS")
#: What compilers mangle of a function that is local to a unit: `static`, or in a namespace without name.
_INTERNAL = re.compile(r"L\d|_GLOBAL__N_")


@dataclass(frozen=True, slots=True)
class _Text:
    """Facts from the text of a unit: the names that it defines, and those of them that the patch does not concern."""

    known: frozenset[str]
    spared: frozenset[str]

    def differs(self, letter: str, name: str, spelt: str) -> bool:
        """Return whether the patch concerns a symbol; one that the text lacks counts, unless it is of a header."""
        short = scoped_name(spelt)[1]
        return short not in self.spared and (short in self.known or not self._of_header(letter, name, spelt))

    def _of_header(self, letter: str, name: str, spelt: str) -> bool:
        """Return whether a symbol that the text does not have comes of a header, and not of a macro in the text."""
        if letter in _WEAK:
            return True
        if name.startswith("_ZT") or letter in "dbr":
            return bool(self.spared)  # Of a class, or `static` in a header, perhaps; if all is concerned, it is, too.
        return letter in _LOCAL and _is_copy(name, spelt)


def _is_copy(name: str, spelt: str) -> bool:
    """Return whether a local function is an instance of a template, or a compiler's copy of a global one."""
    return "<" in spelt.replace("(anonymous namespace)", "").partition("(")[0] or (
        "." in name and not _INTERNAL.search(name)
    )


def _texts(old: str, new: str) -> tuple[_Text, _Text]:
    """Return what the text shows of functions, and of variables."""
    text, concerned = touched.read(new), touched.affected(old, new)
    functions = frozenset(text.functions)
    every = (functions, functions | touched.declared(text))
    first, second = (_Text(known, frozenset() if concerned is None else known - concerned) for known in every)
    return first, second


def _differing(item: Object, old: str, new: str) -> set[str]:
    """Return the functions and variables of a unit that the patch concerns, by its text before and after."""
    if old == new:
        return set()
    functions, variables = _texts(old, new)
    made = names(item.path).defined
    plain = demangle(name for name, letter in made.items() if letter in _KINDS and not _SAME.match(name))
    letters = ((name, made[name]) for name in plain)
    texts = ((name, letter, functions if letter in "TWt" else variables) for name, letter in letters)
    return {name for name, letter, text in texts if text.differs(letter, name, plain[name])}


def _changed(inputs: Inputs, item: Object) -> tuple[str, str]:
    """Return the text of a unit without the patches and with them."""
    new = (inputs.tree / item.unit).read_text(encoding="utf-8", errors="surrogateescape")
    return inputs.originals.get(item.unit, new), new


def _by_macros(inputs: Inputs, objects: Collection[Object]) -> dict[Path, set[str]]:
    """Return what the patch concerns of changed units once their macros are expanded, by object."""
    pairs = {item.path: (item, *_changed(inputs, item)) for item in objects}
    changed = [item for item, old, new in pairs.values() if old != new]
    if inputs.stock is None:
        return {}
    return {item.path: _differing(item, *expanded(inputs, inputs.stock, item.unit)) for item in changed}


def same(inputs: Inputs, objects: Collection[Object], wanted: Collection[str]) -> frozenset[str]:
    """Return those of the hidden symbols `wanted` that are functions and whose stock copy does the same.

    The patch leaves them as they are, with all that they reach without the loader, constants too, and they reach no
    variable: stock and overlay have a copy each.
    """
    if any(is_header(path) and path not in inputs.safe_headers for path in inputs.changed):
        return frozenset()
    differing = {item.path: _differing(item, *_changed(inputs, item)) for item in objects}
    functions = set[str]().union(*(names(item.path).of_kind("T") for item in objects))
    candidates = functions.intersection(wanted).difference(*differing.values())
    if not candidates:
        return frozenset()
    for path, more in _by_macros(inputs, objects).items():
        differing[path] |= more
    candidates.difference_update(*differing.values())
    shared = frozenset[str]().union(*(exported(inputs.lib / name).keys() for name in inputs.replaceable))
    return frozenset(candidates - state.reaching([item.path for item in objects], shared, differing))
