"""Find another overlay, which would replace the same symbols: inside of this torch, or already in this process.

The dynamic loader binds a symbol to the first library that has it, so of two overlays that replace one function only
one is in force, and without a word. So the second one is not loaded, and both are named with what they share.
"""

from __future__ import annotations

import ctypes
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_DYNSYM = 11
_GLOBAL = 1
_MOST_SHOWN = 3
#: What some linkers export of every library and program.
_OF_LINKERS = frozenset({b"_init", b"_fini", b"_edata", b"_end", b"__bss_start"})


class _Where(ctypes.Structure):
    """`Dl_info` of dladdr(3)."""

    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("at", ctypes.c_void_p),
    )


def _dynamic_symbols(stream: BinaryIO) -> Iterator[tuple[bytes, int, int]]:
    """Yield name, binding and section of each dynamic symbol of a 64-bit little-endian library."""
    header = stream.read(64)
    if len(header) < 64 or header[:6] != b"\x7fELF\x02\x01":
        return
    size, count = struct.unpack_from("<HH", header, 58)
    stream.seek(struct.unpack_from("<Q", header, 40)[0])
    sections = list(struct.iter_unpack("<IIQQQQIIQQ", stream.read(size * count)))
    for section in (item for item in sections if item[1] == _DYNSYM):
        names = sections[section[6]]
        stream.seek(names[4])
        text = stream.read(names[5])
        stream.seek(section[4])
        for place, info, _, index, _, _ in struct.iter_unpack("<IBBHQQ", stream.read(section[5])):
            yield text[place : text.index(b"\0", place)], info >> 4, index


def exports(library: Path) -> frozenset[str]:
    """Return the symbols of which a library has the one definition; copies of inline functions do not count."""
    with library.open("rb") as stream:
        found = {name for name, binding, section in _dynamic_symbols(stream) if binding == _GLOBAL and section}
    return frozenset(name.decode("utf-8", "replace") for name in found - _OF_LINKERS)


def spelt(symbol: str) -> str:
    """Return the name that a mangled name of nested scopes has in C++, without its arguments; any other as it is."""
    rest, parts = re.sub(r"^_ZNK?", "", symbol), []
    while match := re.match(r"\d+", rest):
        end = match.end() + int(match.group())
        parts.append(rest[match.end() : end])
        rest = rest[end:]
    return "::".join(parts) if parts and rest.startswith("E") else symbol


def listed(symbols: frozenset[str]) -> str:
    """Return what two overlays share in a few words."""
    names = sorted(map(spelt, symbols))
    more = f" and {len(names) - _MOST_SHOWN} more" if len(names) > _MOST_SHOWN else ""
    return f"both replace {', '.join(names[:_MOST_SHOWN])}{more}" if names else "they share no symbol"


def in_process(symbols: frozenset[str]) -> dict[str, frozenset[str]]:
    """Return, by library, which of these symbols programs of this process find already, e.g. by `LD_PRELOAD`."""
    process = ctypes.CDLL(None)
    found: dict[str, set[str]] = {}
    for symbol in symbols:
        try:
            address = ctypes.cast(getattr(process, symbol), ctypes.c_void_p)
        except AttributeError:
            continue
        where = _Where()
        known = process.dladdr(address, ctypes.byref(where)) and where.file
        found.setdefault(known.decode("utf-8", "replace") if known else "this program", set()).add(symbol)
    return {library: frozenset(names) for library, names in found.items()}
