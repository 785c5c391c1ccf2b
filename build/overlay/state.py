"""Which functions of an overlay reach variables that stock code has its own copy of, or other functions of interest.

What the loader resolves is the same for stock and overlay, so only what it never sees counts.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path

from build.overlay.relocations import Part, Reaches, read

#: Variables of the standard library and of fmt, also static ones of their functions: locales and the like, all equal.
_LIBRARY = re.compile(r"_Z(GV)?Z?N?K?(St|9__gnu|3fmt)")


def _definitions(objects: Iterable[Reaches], shared: Container[str]) -> dict[str, list[Part]]:
    """Return the parts of each name that the loader does not resolve for all."""
    found: dict[str, list[Part]] = defaultdict(list)
    for item in objects:
        for name, part in item.defined.items():
            if (name in item.hidden or name not in shared) and not (part.written and _LIBRARY.match(name)):
                found[name].append(part)
    return found


def _edges(objects: Iterable[Reaches], private: Mapping[str, list[Part]]) -> Iterator[tuple[Part, Part]]:
    for item in objects:
        for source, targets in item.reached.items():
            for target in targets:
                for part in private.get(target, ()) if isinstance(target, str) else (target,):
                    yield source, part


def reaching(paths: Iterable[Path], shared: Container[str], wanted: Iterable[str]) -> frozenset[str]:
    """Return the functions that reach a variable of the overlay's own, or one of the functions `wanted`.

    Args:
        paths: the objects of the overlay.
        shared: what stock exports: the loader has one definition of each for all.
    """
    objects = [read(path) for path in paths]
    private, back = _definitions(objects, shared), defaultdict[Part, set[Part]](set)
    for source, part in _edges(objects, private):
        back[part].add(source)
    found = {part for name in wanted for part in private.get(name, ())}
    found |= {part for part in back if part.written}
    waiting = list(found)
    while waiting:
        more = back[waiting.pop()] - found
        found |= more
        waiting += more
    return frozenset(name for item in objects for name, part in item.defined.items() if part in found)
