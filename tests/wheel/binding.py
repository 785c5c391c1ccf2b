"""Find where the dynamic loader bound the replaced symbols, in the tables of every library of a live process.

Runs in the interpreter under test (standard library only), with LD_BIND_NOW=1 so that every slot is filled:
`python -c <this file> SONAME < symbols`. Prints a JSON object: library -> {"overlay": n, "other": [symbol, …]}.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import struct
import sys
from collections.abc import Iterator
from pathlib import Path


def _sections(data: mmap.mmap) -> Iterator[tuple[int, int, int, int]]:
    """Yield (type, link, offset, size) of the sections of a 64-bit little-endian ELF file."""
    offset = struct.unpack_from("<Q", data, 40)[0]
    size, count = struct.unpack_from("<HH", data, 58)
    for index in range(count):
        _, kind, _, _, start, length, link = struct.unpack_from("<IIQQQQI", data, offset + index * size)
        yield kind, link, start, length


def _slots(data: mmap.mmap, wanted: set[str]) -> Iterator[tuple[int, str]]:
    """Yield (address, symbol) of each dynamic relocation against a wanted symbol."""
    sections = list(_sections(data))
    for kind, link, start, length in sections:
        if kind != 4 or sections[link][0] != 11:  # SHT_RELA against SHT_DYNSYM
            continue
        _, names, table, _ = sections[link]
        strings = sections[names][2]
        cache: dict[int, str] = {}
        for place, info, _ in struct.iter_unpack("<QQq", data[start : start + length]):
            index = info >> 32
            if not index or info & 0xFFFFFFFF not in (1, 6, 7):  # R_X86_64_64, GLOB_DAT, JUMP_SLOT
                continue
            if index not in cache:
                begin = strings + struct.unpack_from("<I", data, table + 24 * index)[0]
                cache[index] = bytes(data[begin : data.find(b"\0", begin)]).decode()
            if cache[index] in wanted:
                yield place, cache[index]


class _Info(ctypes.Structure):
    _fields_ = [
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("at", ctypes.c_void_p),
    ]


def _owner(address: int) -> str:
    """Return the file of the library that an address lies in (dladdr)."""
    info = _Info()
    found = ctypes.CDLL(None).dladdr(ctypes.c_void_p(address), ctypes.byref(info))
    return Path(info.file.decode()).name if found and info.file else "nothing"


def _bases() -> dict[str, int]:
    """Return path and load address of each library in this process."""
    bases: dict[str, int] = {}
    with Path("/proc/self/maps").open(encoding="utf-8") as maps:
        for line in maps:
            fields = line.split()
            if len(fields) == 6 and ".so" in fields[5] and int(fields[2], 16) == 0:
                bases.setdefault(fields[5], int(fields[0].split("-")[0], 16))
    return bases


def main() -> None:
    """Import torch and print where each replaced symbol is bound, library by library."""
    soname, wanted = sys.argv[1], set(sys.stdin.read().split())
    import torch  # noqa: F401

    result = {}
    for path, base in _bases().items():
        if "/torch/" not in path or path.endswith("/" + soname):
            continue
        with Path(path).open("rb") as stream, mmap.mmap(stream.fileno(), 0, prot=mmap.PROT_READ) as data:
            bound, other = 0, []
            for place, name in _slots(data, wanted):
                owner = _owner(ctypes.c_void_p.from_address(base + place).value or 0)
                if owner == soname:
                    bound += 1
                else:
                    other.append(name + " in " + owner)
        if bound or other:
            result[Path(path).name] = {"overlay": bound, "other": other}
    print(json.dumps(result))  # noqa: T201 - read by the test


main()
