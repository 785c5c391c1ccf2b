"""Symbols of objects and shared libraries, by `nm`; of the 500,000 of libtorch_cpu.so few are asked for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, KeysView, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from elftools.elf.elffile import ELFFile

from build.errors import WheelError
from build.overlay import relocations
from build.process import run

#: `nm` letters of weak and unique definitions: vague linkage, all copies are equal.
_WEAK = frozenset("VvWwu")
#: Itanium ABI prefixes of what belongs to the C++ library itself; torch's libraries carry copies of its templates.
_STD = (
    *("_ZSt", "_ZNSt", "_ZNKSt", "_ZTSSt", "_ZTISt", "_ZTVSt", "_ZGVNSt", "_ZTINSt", "_ZTSNSt", "_ZTVNSt"),
    *("_ZN9__gnu", "_ZNSs"),
)


@dataclass(frozen=True, slots=True)
class Symbol:
    """One symbol of a symbol table; `kind` is the letter `nm` gives it, `version` its symbol version if it has one."""

    name: str
    kind: str
    address: int
    size: int
    version: str = ""

    @property
    def strong(self) -> bool:
        """Return whether it is an ordinary definition: a program may have only one of its name."""
        return self.kind not in _WEAK and self.kind != "U"

    @property
    def standard(self) -> bool:
        return self.name.startswith(_STD)


@dataclass(frozen=True, slots=True)
class Names:
    """The symbols of one object by name: those that it defines, with the letter of each, and those that it needs."""

    defined: Mapping[str, str]
    undefined: frozenset[str]

    def of_kind(self, letters: str) -> set[str]:
        return {name for name, kind in self.defined.items() if kind in letters}


class Table(Mapping[str, Symbol]):
    """The symbols that a library defines, by name; each is read when it is asked for; of equal names the last one."""

    __slots__ = ("_lines",)

    def __init__(self, lines: Iterable[str]) -> None:
        self._lines = {line[: line.find(" ")].partition("@")[0]: line for line in lines if _kind(line) not in "Uvw"}

    def __getitem__(self, name: str) -> Symbol:
        return _symbol(self._lines[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self._lines)

    def __len__(self) -> int:
        return len(self._lines)

    def __contains__(self, name: object) -> bool:
        return name in self._lines

    def keys(self) -> KeysView[str]:
        return self._lines.keys()


def _kind(line: str) -> str:
    return line[line.find(" ") + 1]


def _symbol(line: str) -> Symbol:
    fields = line.split()
    value, size, *_ = [*(int(field, 16) for field in fields[2:4]), 0, 0]
    name, _, version = fields[0].partition("@")
    return Symbol(name, fields[1], value, size, version.lstrip("@"))


def _read(path: Path, *, dynamic: bool) -> list[str]:
    done = run(["nm", "--format=posix", "--no-sort", *(["-D"] if dynamic else []), path], timeout=300)
    if done.returncode:
        raise WheelError(f"cannot read the symbols of {path.name}", cause=done.tail)
    return [line for line in done.stdout.decode("ascii", "replace").splitlines() if " " in line]


#: Of the wheel's five libraries; the full tables take 150 MB.
_lines = lru_cache(maxsize=12)(_read)


def dynamic(path: Path, kinds: str = "") -> list[Symbol]:
    """Return the dynamic symbol table of a library: what it exports, and what it needs of others.

    Args:
        kinds: the letters that are wanted; empty for all.

    Raises:
        WheelError: it is not an ELF file that `nm` can read.
    """
    return [_symbol(line) for line in _lines(path, dynamic=True) if not kinds or _kind(line) in kinds]


@lru_cache(maxsize=12)
def exported(path: Path) -> Table:
    """Return what a library defines for others; raise as `dynamic`."""
    return Table(_lines(path, dynamic=True))


@lru_cache(maxsize=6)
def defined(path: Path) -> Table:
    """Return all that a library defines, also what is hidden; raise as `dynamic`."""
    return Table(_lines(path, dynamic=False))


@lru_cache(maxsize=3)
def functions(path: Path) -> list[tuple[int, str]]:
    """Return the address and the name of each function of a library, hidden ones too, in the order of addresses."""
    fields = (line.split(" ", 3) for line in _lines(path, dynamic=False) if _kind(line) in "tTWiu")
    return sorted((int(value, 16), name.partition("@")[0]) for name, _, value, *_ in fields)


@lru_cache(maxsize=256)
def names(path: Path) -> Names:
    """Return the symbols of an object, or of an archive of objects.

    Raises:
        WheelError: `nm` cannot read it.
    """
    pairs = [line.split(" ", 2)[:2] for line in _read(path, dynamic=False)]
    have = {name: kind for name, kind in pairs if kind not in "Uvw"}
    return Names(have, frozenset(name.partition("@")[0] for name, kind in pairs if kind == "U"))


def exports(path: Path) -> set[str]:
    """Return the functions of an object that are neither weak nor hidden: a library exports them."""
    return names(path).of_kind("T") - relocations.read(path).hidden


def undefined(paths: Iterable[Path]) -> frozenset[str]:
    """Return what the objects `paths` need and none of them defines."""
    every = [names(path) for path in paths]
    needs = frozenset[str]().union(*(item.undefined for item in every))
    return needs.difference(*(item.defined for item in every))


def demangle(names: Iterable[str]) -> dict[str, str]:
    ordered = sorted(set(names))
    if not ordered:
        return {}
    done = run(["c++filt"], stdin="\n".join(ordered).encode(), timeout=120)
    return dict(zip(ordered, done.stdout.decode("utf-8", "replace").splitlines(), strict=True))


def scoped_name(demangled: str) -> tuple[str, str]:
    """Return the enclosing class or namespace and the name of a demangled function or variable."""
    plain = re.sub(r"\[abi:\w+\]|\(.*$", "", demangled.replace("(anonymous namespace)::", ""))
    while re.search(r"<[^<>]*>", plain):
        plain = re.sub(r"<[^<>]*>", "", plain)
    scope, _, name = plain.split()[-1].rpartition("::")
    return scope.rpartition("::")[2], name


def run_path(path: Path) -> str:
    with path.open("rb") as stream:
        dynamic = ELFFile(stream).get_section_by_name(".dynamic")
        for tag in dynamic.iter_tags() if dynamic else ():
            if tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH"):
                return str(getattr(tag, "rpath", None) or tag.runpath)
    return ""


def needed(path: Path) -> tuple[str, ...]:
    with path.open("rb") as stream:
        dynamic = ELFFile(stream).get_section_by_name(".dynamic")
        return tuple(tag.needed for tag in dynamic.iter_tags("DT_NEEDED")) if dynamic else ()
