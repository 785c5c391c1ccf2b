"""Find functions of an overlay that reach variables which stock code has copies of, or other functions of interest.

What the loader resolves is the same for stock and overlay, so only what it never sees counts.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from pathlib import Path

from build.overlay.relocations import Part, Reaches, read

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


def _edges(objects: Iterable[Reaches], private: Mapping[str, list[Part]]) -> Iterator[tuple[Part, Part]]:
    for item in objects:
        for source, targets in item.reached.items():
            for target in targets:
                for part in private.get(target, ()) if isinstance(target, str) else (target,):
                    yield source, part


def _parts(path: Path, name: str, private: Mapping[str, list[Part]]) -> set[Part]:
    return {*private.get(name, ()), *read(path).local.get(name, ())}


def reaching(paths: Iterable[Path], shared: Container[str], wanted: Mapping[Path, Collection[str]]) -> frozenset[str]:
    """Return the names that reach a variable of the overlay's own, or one of the functions and constants `wanted`.

    Args:
        paths: the objects of the overlay.
        shared: what stock exports: the loader has one definition of each for all.
        wanted: names by object; local ones are those of the object, others may have definitions in several.
    """
    objects = [read(path) for path in paths]
    private, back = _definitions(objects, shared), defaultdict[Part, set[Part]](set)
    for source, part in _edges(objects, private):
        back[part].add(source)
    found = {part for path, every in wanted.items() for name in every for part in _parts(path, name, private)}
    found |= {part for part in back if part.written}
    waiting = list(found)
    while waiting:
        more = back[waiting.pop()] - found
        found |= more
        waiting += more
    return frozenset(name for item in objects for name, part in item.defined.items() if part in found)
