"""Find the parts of an object that reach each other, by its relocations and its code.

x86-64 only. What is not certain counts as reached.
"""

from __future__ import annotations

import re
import struct
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from elftools.elf.constants import SH_FLAGS
from elftools.elf.elffile import ELFFile

_SYMBOL, _RELOCATION = struct.Struct("<IBBHQQ"), struct.Struct("<QQq")
_LOCAL, _OBJECT, _FUNCTION, _SECTION = 0, 1, 2, 3
#: A number that did not fit, and variables of C that the linker places: nothing is known of them.
_ELSEWHERE = frozenset({0xFFFF, 0xFFF2})
_HIDDEN = frozenset({1, 2})
#: Their value is an address as it is; that of all others counts from the end of the field, or of the instruction.
_ABSOLUTE = frozenset({1, 10, 11})
#: What is no longer may lie before a table of which the code wants `kTable[i - 1]`: it has the address of that.
_ELEMENT = 8
#: A cold or split part of a function, `f.cold`: a table of jumps may be the only way to it.
_SPLIT = re.compile(r"\.(cold|part)\b.*")
#: What may hold a distance of four bytes: call, jmp, jcc, and ModRM with [rip + disp32]; or of one: the short jumps.
_NEAR = re.compile(rb"(?=(?:[\xe8\xe9\x05\x0d\x15\x1d\x25\x2d\x35\x3d]|\x0f[\x80-\x8f])(....))", re.S)
_SHORT = re.compile(rb"(?=[\xe3\xeb\x70-\x7f](.))", re.S)


class Part(NamedTuple):
    """A function, a constant, or a table of pointers that only the loader writes; section 0 is all that is written."""

    path: Path
    section: int
    start: int

    @property
    def written(self) -> bool:
        return not self.section


class _Symbol(NamedTuple):
    name: str
    local: bool
    kind: int
    hidden: bool
    section: int
    value: int
    size: int

    @property
    def begins(self) -> bool:
        return self.kind in {_FUNCTION, _OBJECT}


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


@dataclass(slots=True)
class _Object:
    """An object while it is read.

    Attributes:
        code, tables: numbers of the sections with functions, and of those that only the loader writes.
        constants: numbers of the sections that nothing writes.
        written: numbers of the sections with variables.
        starts: the addresses where something begins, by section.
        short: those of them, with their sections, where no more than an element of a table lies.
    """

    path: Path
    elf: ELFFile
    code: set[int] = field(default_factory=set)
    tables: set[int] = field(default_factory=set)
    constants: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=lambda: set(_ELSEWHERE))
    symbols: list[_Symbol] = field(default_factory=list)
    starts: dict[int, list[int]] = field(default_factory=dict)
    short: set[tuple[int, int]] = field(default_factory=set)

    def part(self, section: int, address: int) -> Part | None:
        """Return what lies at an address; None for what is not in memory."""
        if section in self.written:
            return Part(self.path, 0, 0)
        if not any(section in every for every in (self.code, self.tables, self.constants)):
            return None
        starts = self.starts.get(section, [])
        at = bisect_right(starts, address) - 1
        return Part(self.path, section, starts[at] if at >= 0 else -1)

    def parts(self, section: int, address: int) -> Iterator[Part]:
        """Yield what code may want that has an address: also what comes behind it, if nothing long begins there."""
        if not (part := self.part(section, address)):
            return
        yield part
        exact = part.start == address and (section, address) not in self.short
        starts = self.starts.get(part.section, [])
        behind = bisect_right(starts, address)
        if section not in self.code and not exact and behind < len(starts):
            yield Part(self.path, section, starts[behind])


def _sort_sections(made: _Object) -> None:
    for number, section in enumerate(made.elf.iter_sections()):
        flags = section["sh_flags"]
        if flags & SH_FLAGS.SHF_EXECINSTR:
            made.code.add(number)
        elif flags & SH_FLAGS.SHF_WRITE:
            (made.tables if section.name.startswith(".data.rel.ro") else made.written).add(number)
        elif flags & SH_FLAGS.SHF_ALLOC:
            made.constants.add(number)


def _read_symbols(made: _Object) -> None:
    table = made.elf.get_section_by_name(".symtab")
    strings = made.elf.get_section(table["sh_link"]).data()
    for at, info, other, section, value, size in _SYMBOL.iter_unpack(table.data()):
        name = strings[at : strings.index(b"\0", at)].decode("ascii", "replace")
        made.symbols.append(_Symbol(name, info >> 4 == _LOCAL, info & 15, other & 3 in _HIDDEN, section, value, size))


def _find_starts(made: _Object) -> None:
    apart = made.code | made.tables | made.constants
    begins: dict[int, set[int]] = defaultdict(set)
    for symbol in made.symbols:
        if symbol.begins and symbol.section in apart:
            begins[symbol.section].add(symbol.value)
            if symbol.size <= _ELEMENT:
                made.short.add((symbol.section, symbol.value))
    made.starts = {section: sorted(every) for section, every in begins.items()}


def _targets(made: _Object, symbol: _Symbol, kind: int, addend: int) -> Iterator[Part | str]:
    if not symbol.local:
        yield symbol.name
        return
    if symbol.kind != _SECTION:
        yield from filter(None, [made.part(symbol.section, symbol.value)])
        return
    yield from made.parts(symbol.section, addend if kind in _ABSOLUTE else addend + 4)
    if kind not in _ABSOLUTE and symbol.section not in made.code:
        # The field may have a constant of the instruction behind it.
        yield from filter(None, (made.part(symbol.section, addend + more) for more in (5, 6, 8)))


def _relocations(made: _Object) -> Iterator[tuple[int, int, int, int, int]]:
    for section in made.elf.iter_sections():
        if section["sh_type"] == "SHT_RELA" and section["sh_info"] in made.code | made.tables:
            for offset, info, addend in _RELOCATION.iter_unpack(section.data()):
                yield section["sh_info"], offset, info >> 32, info & 0xFFFFFFFF, addend


def _within_sections(made: _Object, relocated: Mapping[int, set[int]]) -> Iterator[tuple[Part, Part]]:
    """Yield what code reaches in its own section: the assembler resolves that without a relocation."""
    for section in sorted(made.code):
        starts = frozenset(made.starts.get(section, ()))
        if len(starts) < 2:
            continue
        code, known = made.elf.get_section(section).data(), relocated.get(section, set())
        for found in (*_NEAR.finditer(code), *_SHORT.finditer(code)):  # each place that may hold a distance
            place, target = found.start(1), found.end(1) + int.from_bytes(found[1], "little", signed=True)
            if target in starts and place not in known:
                source, part = made.part(section, place), made.part(section, target)
                if source and part and source != part:
                    yield source, part


def _split_parts(made: _Object) -> Iterator[tuple[Part, Part]]:
    functions: dict[str, list[_Symbol]] = defaultdict(list)
    for symbol in made.symbols:
        if symbol.kind == _FUNCTION and symbol.section in made.code:
            functions[symbol.name].append(symbol)
    for name in [name for name in functions if _SPLIT.search(name)]:
        for whole in functions.get(_SPLIT.sub("", name), ()):
            for split in functions[name]:
                source, part = made.part(whole.section, whole.value), made.part(split.section, split.value)
                if source and part:
                    yield source, part


@lru_cache(maxsize=64)
def read(path: Path) -> Reaches:
    """Read an object.

    Raises:
        ELFError: it is none.
    """
    reached: dict[Part, set[Part | str]] = defaultdict(set)
    relocated: dict[int, set[int]] = defaultdict(set)
    with path.open("rb") as stream:
        made = _Object(path, ELFFile(stream))
        _sort_sections(made)
        _read_symbols(made)
        _find_starts(made)
        for section, offset, number, kind, addend in _relocations(made):
            relocated[section].add(offset)
            if source := made.part(section, offset):
                reached[source].update(_targets(made, made.symbols[number], kind, addend))
        for source, target in (*_within_sections(made, relocated), *_split_parts(made)):
            reached[source].add(target)
    hidden = frozenset(symbol.name for symbol in made.symbols if not symbol.local and symbol.hidden)
    defined: dict[str, Part] = {}
    local: dict[str, set[Part]] = defaultdict(set)
    for symbol in made.symbols:
        if not (part := made.part(symbol.section, symbol.value)):
            continue
        if not symbol.local:
            defined[symbol.name] = part
        elif symbol.begins:
            local[symbol.name].add(part)
    return Reaches(reached, defined, dict(local), hidden)
