"""Compare units with the patches and without: patches without effect, and functions whose stock copies stay valid.

What the loader resolves is the same for stock and overlay, so only what it never sees counts.
"""

from __future__ import annotations

import re
import tempfile
from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from build.errors import PatchError
from build.overlay import touched
from build.overlay.layout import is_header
from build.overlay.model import Inputs, Object
from build.overlay.objects import jobs, override_headers, preprocess
from build.overlay.relocations import Part, Reaches, reachable, read
from build.overlay.symbols import demangle, exported, names, scoped_name
from build.overlay.touched import bare
from build.process import run_together

#: Letters of `nm`: weak, so mostly of headers; local to the object.
_WEAK, _LOCAL = "WVu", "tdbr"
_KINDS = "TWtDBRVudbr"
#: Labels of the compiler; the texts of types' names, which are what the symbols say.
_SAME = re.compile(r"\.|_ZTS")
#: What compilers mangle of a function that is local to a unit: `static`, or in a namespace without name.
_INTERNAL = re.compile(r"L\d|_GLOBAL__N_")
#: Of the preprocessor: the file that the next line is from.
_MARKER = re.compile(r'# \d+ "([^"]*)"')
#: Variables of the standard library and of fmt, also static ones of their functions: locales and the like, all equal.
_LIBRARY = re.compile(r"_Z(GV)?Z?N?K?(St|9__gnu|3fmt)")


def _definitions(objects: Collection[Reaches], shared: Container[str]) -> dict[str, list[Part]]:
    """Return the parts of each name that the loader does not resolve for all.

    A name is hidden if one object says so, as the linker has it.
    """
    hidden = frozenset[str]().union(*(item.hidden for item in objects))
    found: dict[str, list[Part]] = defaultdict(list)
    for item in objects:
        for name, part in item.defined.items():
            if (name in hidden or name not in shared) and not (part.written and _LIBRARY.match(name)):
                found[name].append(part)
    return found


def reaching(paths: Iterable[Path], shared: Container[str], wanted: Mapping[Path, Collection[str]]) -> frozenset[str]:
    """Return the names that reach a variable of the overlay's own, or one of the functions and constants `wanted`.

    Args:
        paths: the objects of the overlay.
        shared: what stock exports: the loader has one definition of each for all.
        wanted: names by object; local ones are those of the object, others may have definitions in several.
    """
    objects = [read(path) for path in paths]
    private, back = _definitions(objects, shared), defaultdict[Part, set[Part]](set)
    for source, targets in (reached for item in objects for reached in item.reached.items()):
        for target in targets:
            for part in private.get(target, ()) if isinstance(target, str) else (target,):
                back[part].add(source)
    found = {part for part in back if part.written}
    for path, every in wanted.items():
        for name in every:
            found |= {*private.get(name, ()), *read(path).local.get(name, ())}
    found = reachable(found, back.__getitem__)
    return frozenset(name for item in objects for name, part in item.defined.items() if part in found)


def _preprocessed(inputs: Inputs, stock: Path, unit: str, *options: str) -> tuple[bytes, bytes]:
    with tempfile.TemporaryDirectory(prefix="effect-") as scratch:
        (none := Path(scratch, "none")).mkdir()
        override_headers(inputs, Path(scratch, "changed"))
        before = preprocess(replace(inputs, tree=stock, changed=()), unit, none, *options)
        return before, preprocess(inputs, unit, Path(scratch, "changed"), *options)


def expanded(inputs: Inputs, stock: Path, unit: str) -> tuple[str, str]:
    """Return the text of a unit with its macros expanded and without headers, before the patches and after them."""
    before, after = (data.decode("utf-8", "surrogateescape") for data in _preprocessed(inputs, stock, unit))
    return _own(before, unit), _own(after, unit)


def _own(text: str, unit: str) -> str:
    """Return the lines of preprocessed text that come from the unit itself, as the line markers say."""
    own, lines = False, []
    for line in text.splitlines():
        if marker := _MARKER.match(line):
            own = marker[1].endswith(f"/{unit}")
        elif own:
            lines.append(line)
    return "\n".join(lines)


def _no_effect(inputs: Inputs, stock: Path, unit: str) -> bool:
    """Return whether a patch changes more than comments of a unit, and the compiler gets the same."""
    old, new = inputs.originals[unit], (inputs.tree / unit).read_text(encoding="utf-8", errors="surrogateescape")
    if bare(old).split() == bare(new).split():
        return False
    before, after = _preprocessed(inputs, stock, unit, "-P")
    return before == after


def require_effect(inputs: Inputs) -> None:
    """Refuse changed units that are the same with the patches and without, but for comments.

    Raises:
        PatchError: there is such a unit; the message names each.
        CompileError: a unit cannot be preprocessed.
    """
    if inputs.stock is None:
        return
    changed = [unit for unit in inputs.units if inputs.originals.get(unit)]
    tasks = [partial(_no_effect, inputs, inputs.stock, unit) for unit in changed]
    found = run_together(tasks, jobs(inputs.jobs)) if tasks else []
    if units := [unit for unit, unchanged in zip(changed, found, strict=True) if unchanged]:
        raise PatchError(
            f"the patch has no effect in the wheel on {', '.join(units)}",
            cause="what the compiler gets is the same without it: code that these wheels are built without",
            remedy="take the change out of the patch; or say how the wheel was built: --define NAME=1",
        )


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
        # An instance of a template, or a compiler's copy of a global function.
        template = "<" in spelt.replace("(anonymous namespace)", "").partition("(")[0]
        return letter in _LOCAL and (template or ("." in name and not _INTERNAL.search(name)))


def _texts(old: str, new: str) -> tuple[_Text, _Text]:
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
    new = (inputs.tree / item.unit).read_text(encoding="utf-8", errors="surrogateescape")
    return inputs.originals.get(item.unit, new), new


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
    for item in objects:  # and what it concerns once macros are expanded
        old, new = _changed(inputs, item)
        if old != new and inputs.stock is not None:
            differing[item.path] |= _differing(item, *expanded(inputs, inputs.stock, item.unit))
    candidates.difference_update(*differing.values())
    shared = frozenset[str]().union(*(exported(inputs.lib / name).keys() for name in inputs.replaceable))
    return frozenset(candidates - reaching([item.path for item in objects], shared, differing))
