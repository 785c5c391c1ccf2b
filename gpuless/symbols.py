"""The functions that the imitation has to provide, read from the installed libraries."""

from __future__ import annotations

import mmap
import re
from pathlib import Path

from elftools.elf.elffile import ELFFile

# A driver function's name as a whole string: c10 and ATen look these up with dlsym.
_DRIVER_NAME = re.compile(rb"\x00(cu[A-Z][a-z][A-Za-z0-9_]{2,60})(?=\x00)")


def exported(library: Path, prefix: str) -> frozenset[str]:
    """Return the functions with that prefix that a shared library defines."""
    return frozenset(s for s, defined in _dynamic(library, prefix) if defined)


def required(library: Path, prefix: str) -> frozenset[str]:
    """Return the functions with that prefix that a shared library imports."""
    return frozenset(s for s, defined in _dynamic(library, prefix) if not defined)


def driver_names(library: Path) -> frozenset[str]:
    """Return the CUDA driver functions a library names: linked ones, and strings given to dlsym.

    Strings that are not functions may match too; a superfluous stub is harmless.
    """
    linked = {s for s in required(library, "cu") if s[2:3].isupper()}
    return frozenset(linked | {m.decode() for m in _strings(library)})


def build_id(library: Path) -> str:
    """Return the GNU build id of a library, empty when it has none."""
    with library.open("rb") as stream:
        section = ELFFile(stream).get_section_by_name(".note.gnu.build-id")
        for entry in section.iter_notes() if section else ():
            return str(entry["n_desc"])
    return ""


def _dynamic(library: Path, prefix: str) -> list[tuple[str, bool]]:
    with library.open("rb") as stream:
        table = ELFFile(stream).get_section_by_name(".dynsym")
        return [
            (symbol.name, symbol["st_shndx"] != "SHN_UNDEF")
            for symbol in table.iter_symbols()
            if symbol.name.startswith(prefix) and symbol["st_info"]["type"] in {"STT_FUNC", "STT_NOTYPE"}
        ]


def _strings(library: Path) -> set[bytes]:
    with library.open("rb") as stream:
        section = ELFFile(stream).get_section_by_name(".rodata")
        if section is None:
            return set()
        start, size = section["sh_offset"], section["sh_size"]
        with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as view:
            return {m.group(1) for m in _DRIVER_NAME.finditer(view, start, start + size)}
