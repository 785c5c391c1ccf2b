"""Which hidden functions of an overlay do what their stock copies do, so that stock code may keep to these."""

from __future__ import annotations

from collections.abc import Collection

from build.overlay import state, touched
from build.overlay.definers import scoped_name
from build.overlay.layout import is_header
from build.overlay.model import Inputs, Object
from build.overlay.symbols import demangle, exported, names


def _differing(inputs: Inputs, item: Object) -> set[str]:
    """Return the functions of a unit that the patch concerns, by its text."""
    new = (inputs.tree / item.unit).read_text(encoding="utf-8", errors="surrogateescape")
    old = inputs.originals.get(item.unit, new)
    if old == new:
        return set()
    spared, known, made = touched.spared(old, new), touched.read(new).functions, names(item.path)
    plain = {name: scoped_name(spelt)[1] for name, spelt in demangle(made.of_kind("TW")).items()}
    # Most weak functions are those of headers, which the text does not have.
    weak = made.of_kind("W")
    return {name for name, short in plain.items() if short not in spared and (name not in weak or short in known)}


def same(inputs: Inputs, objects: Collection[Object], wanted: Collection[str]) -> frozenset[str]:
    """Return those of the hidden symbols `wanted` that are functions and whose stock copy does the same.

    The patch leaves them as they are, with all that they reach without the loader, and they reach no variable: stock
    and overlay have a copy each.
    """
    if any(is_header(path) and path not in inputs.safe_headers for path in inputs.changed):
        return frozenset()
    differing = set[str]().union(*(_differing(inputs, item) for item in objects))
    functions = set[str]().union(*(names(item.path).of_kind("T") for item in objects))
    candidates = functions.intersection(wanted) - differing
    if not candidates:
        return frozenset()
    shared = frozenset[str]().union(*(exported(inputs.lib / name).keys() for name in inputs.replaceable))
    return frozenset(candidates - state.reaching([item.path for item in objects], shared, differing))
