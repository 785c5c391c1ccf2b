"""Find the parts of an object that reach each other, by its relocations.

A part is a section. Units are compiled with a section for each function and each variable (`build.overlay.flags`), so a
relocation tells of everything that one reaches of another, also of the cold part of a function. x86-64 only. What is
not certain counts as reached.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from elftools.elf.constants import SH_FLAGS
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import Section

_SYMBOL, _RELOCATION = struct.Struct("<IBBHQQ"), struct.Struct("<QQq")
_LOCAL, _OBJECT, _FUNCTION = 0, 1, 2
#: A number that did not fit, and variables of C that the linker places: nothing is known of them.
_ELSEWHERE = (0xFFFF, 0xFFF2)
_HIDDEN = frozenset({1, 2})


class Part(NamedTuple):
    """A function, a constant, or a table of pointers that only the loader writes; section 0 is all that is written."""

    path: Path
    section: int

    @property
    def written(self) -> bool:
        return not self.section


class _Symbol(NamedTuple):
    name: str
    local: bool
    kind: int
    hidden: bool
    section: int


@dataclass(frozen=True, slots=True)
class Reaches:
    """The parts of one object with what each reaches: parts of it, and names that linker or loader resolve.

    Attributes:
        defined: the part of each name that is not local to the object.
        local: the parts of each name that is: several may have the same one.
        hidden: those of the names that the loader never sees, also of names that another object defines.
    """

    reached: Mapping[Part, set[Part | str]]
    defined: Mapping[str, Part]
    local: Mapping[str, set[Part]]
    hidden: frozenset[str]


def _parts(path: Path, sections: list[Section]) -> dict[int, Part]:
    """Return the part of each section that is in memory."""
    parts = dict.fromkeys(_ELSEWHERE, Part(path, 0))
    for number, section in enumerate(sections):
        written = section["sh_flags"] & SH_FLAGS.SHF_WRITE and not section.name.startswith(".data.rel.ro")
        if section["sh_flags"] & SH_FLAGS.SHF_ALLOC:
            parts[number] = Part(path, 0 if written else number)
    return parts


def _symbols(sections: list[Section]) -> Iterator[_Symbol]:
    table = next(section for section in sections if section["sh_type"] == "SHT_SYMTAB")
    strings = sections[table["sh_link"]].data()
    for at, info, other, section, _, _ in _SYMBOL.iter_unpack(table.data()):
        name = strings[at : strings.index(b"\0", at)].decode("ascii", "replace")
        yield _Symbol(name, info >> 4 == _LOCAL, info & 15, other & 3 in _HIDDEN, section)


@lru_cache(maxsize=64)
def read(path: Path) -> Reaches:
    """Read an object.

    Raises:
        ELFError: it is none.
    """
    reached: dict[Part, set[Part | str]] = defaultdict(set)
    defined: dict[str, Part] = {}
    local: dict[str, set[Part]] = defaultdict(set)
    with path.open("rb") as stream:
        sections = list(ELFFile(stream).iter_sections())
        parts, symbols = _parts(path, sections), list(_symbols(sections))
        targets = [parts.get(symbol.section) if symbol.local else symbol.name for symbol in symbols]
        for section in sections:
            source = parts.get(section["sh_info"]) if section["sh_type"] == "SHT_RELA" else None
            if source and not source.written:
                numbers = {info >> 32 for _, info, _ in _RELOCATION.iter_unpack(section.data())}
                reached[source].update(target for number in numbers if (target := targets[number]))
    for symbol in symbols:
        if not (part := parts.get(symbol.section)):
            continue
        if not symbol.local:
            defined[symbol.name] = part
        elif symbol.kind in {_FUNCTION, _OBJECT}:
            local[symbol.name].add(part)
    hidden = frozenset(symbol.name for symbol in symbols if not symbol.local and symbol.hidden)
    return Reaches(reached, defined, dict(local), hidden)


def reachable(starts: Iterable[Part], edges: Callable[[Part], Iterable[Part]]) -> set[Part]:
    """Return `starts`, and all that `edges` lead to from these."""
    found = set(starts)
    waiting = list(found)
    while waiting:
        more = set(edges(waiting.pop())) - found
        found |= more
        waiting += more
    return found
