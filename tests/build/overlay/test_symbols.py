"""Symbol tables as another reader of ELF files sees them."""

from __future__ import annotations

from pathlib import Path

import pytest
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from build.overlay import symbols
from tests.build.overlay import little as lt
from tests.build.overlay.little import Little

pytestmark = pytest.mark.usefixtures("module_cache")


def read(path: Path, section: str) -> list[tuple[str, str, int, int, bool]]:
    """Return name, type, address and size of each symbol, and whether it is defined."""
    with path.open("rb") as stream:
        found = ELFFile(stream).get_section_by_name(section)
        assert isinstance(found, SymbolTableSection)
        return [
            (item.name, item["st_info"]["type"], item["st_value"], item["st_size"], item["st_shndx"] != "SHN_UNDEF")
            for item in found.iter_symbols()
            if item.name and item["st_info"]["type"] not in {"STT_FILE", "STT_SECTION"}
        ]


def test_the_tables_of_libraries(little: Little) -> None:
    for library in (little.wheel / "torch" / "lib").iterdir():
        for section, mine in ((".symtab", symbols.defined(library)), (".dynsym", symbols.exported(library))):
            theirs = {name.partition("@")[0]: place for name, _, *place, defined in read(library, section) if defined}
            assert {name: [mine[name].address, mine[name].size] for name in mine} == theirs, (library, section)


def test_the_functions_of_libraries(little: Little) -> None:
    for library in (little.wheel / "torch" / "lib").iterdir():
        every = {
            (place, name) for name, kind, place, _, there in read(library, ".symtab") if there and kind == "STT_FUNC"
        }
        assert every <= set(symbols.functions(library))
        assert symbols.functions(library) == sorted(symbols.functions(library))


def test_what_an_object_has_and_needs(tmp_path: Path) -> None:
    source, path = tmp_path / "unit.c", tmp_path / "unit.o"
    source.write_text(
        "int needed(void); static int own(void) { return needed(); }\nint given(void) { return own(); }\n"
    )
    lt.shell("gcc", "-O0", "-c", source, "-o", path)
    found = symbols.names(path)
    assert found.undefined == {"needed"}
    assert found.defined == {"own": "t", "given": "T"}
    assert found.of_kind("TD") == {"given"}
