"""Find stock code outside the overlay that uses hidden symbols of the overlay's units.

Such code was linked to them directly, without symbol lookup: it stays with the stock copy, so that a patch has no
effect on it, and of a variable there are two. The instructions of the library show it.
"""

from __future__ import annotations

import re
import tempfile
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from elftools.elf.constants import SH_FLAGS
from elftools.elf.elffile import ELFFile

from build.overlay.checks import spans
from build.overlay.model import Inputs, Object
from build.overlay.symbols import defined, demangle, exported, functions, names
from build.overlay.toolchain import make
from build.process import run

_SCANNER = Path(__file__).with_name("native") / "uses.c"
#: What compilers append to the names of the parts of a function.
_PART = re.compile(r"(\.(cold|isra|constprop|part|lto_priv|localalias)(\.\d+)*)+$")


def _whole(name: str) -> str:
    """Return the name of the function that a symbol is a part of, such as its cold part."""
    return _PART.sub("", name) if "." in name else name


def _users(
    library: Path, scanner: Path, wanted: Mapping[int, str], own: Collection[str], ranges: Iterable[tuple[int, int]]
) -> dict[str, set[str]]:
    """Return for each hidden symbol the functions of other units that use it.

    Functions of the units are those in `own`, and what lies in `ranges`: the stock unit may have a function that the
    recompiled one lacks, since the patch removes it, or this compiler inlines it.
    """
    every = functions(library)
    places = [address for address, _ in every]
    inside = (every[bisect_left(places, low) : bisect_right(places, high)] for low, high in ranges)
    mine = {*own, *(_whole(name) for part in inside for _, name in part)}
    lines = "\n".join(f"{address:x}" for address in sorted(wanted))
    with library.open("rb") as stream:
        code = [item for item in ELFFile(stream).iter_sections() if item["sh_flags"] & SH_FLAGS.SHF_EXECINSTR]
    sections = [str(item[key]) for item in code for key in ("sh_offset", "sh_size", "sh_addr")]
    done = run([scanner, library, *sections], stdin=lines.encode(), timeout=300)
    found: dict[str, set[str]] = defaultdict(set)
    for line in done.stdout.decode().splitlines():
        site, target = (int(part, 16) for part in line.split())
        at = bisect_right(places, site) - 1
        user = _whole(every[at][1]) if at >= 0 else ""
        if user not in mine:
            found[wanted[target]].add(user)
    return found


def users(inputs: Inputs, objects: Iterable[Object]) -> dict[str, frozenset[str]]:
    """Return the hidden symbols of units that stock code outside them uses, with the functions that do, mangled."""
    objects = tuple(objects)
    own = {_whole(name) for item in objects for name in names(item.path).defined}
    strong = set[str]().union(*(names(item.path).of_kind("TDBR") for item in objects))
    found: dict[str, set[str]] = defaultdict(set)
    with tempfile.TemporaryDirectory(prefix="uses-") as scratch:
        scanner = Path(scratch) / "uses"
        command: list[str | Path] = [inputs.toolchain.cxx, "-x", "c", "-std=gnu11", "-O2", _SCANNER, "-o", scanner]
        make(command, f"{_SCANNER.name} does not compile", remedy="set CXX to another compiler")
        for name in inputs.replaceable:
            library = inputs.lib / name
            hidden = (strong & defined(library).keys()) - exported(library).keys()
            found_there = (defined(library)[name] for name in hidden)
            if wanted := {item.address: item.name for item in found_there if item.kind in "tdbr"}:
                ranges = spans(objects, exported(library))
                for symbol, callers in _users(library, scanner, wanted, own, ranges).items():
                    found[symbol] |= callers
    return {symbol: frozenset(callers) for symbol, callers in found.items()}


def spelt(found: Mapping[str, frozenset[str]]) -> list[str]:
    """Return one line for each hidden symbol: who uses it."""
    plain = demangle({*found, *(user for callers in found.values() for user in callers)})
    return [
        f"{plain[symbol]} is used by {', '.join(sorted(plain[user] for user in callers)[:3])}"
        + (f" and {len(callers) - 3} more" if len(callers) > 3 else "")
        for symbol, callers in sorted(found.items())
    ]
