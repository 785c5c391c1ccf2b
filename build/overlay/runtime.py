"""The C and C++ runtime that an overlay is linked against: as old as the one that the official wheel needs.

A linker binds a symbol to the newest version that this machine's library has, so an overlay linked on a new system
would not load on the old ones where the official wheel does. Here the linker gets stubs of the system's libraries
instead, which have each symbol in the newest version that is no newer than what the wheel's own libraries need. Of
what exists in newer versions only, `native/compat` defines, hidden, what units of PyTorch use. The rest keeps its newer
version, and the platform tag tells.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from build.overlay.symbols import dynamic, names
from build.overlay.toolchain import Toolchain, make, run_compiler
from build.paths import cache
from build.process import run
from build.seals import built, sha256_of

#: Libraries of the system that host code of PyTorch uses.
_OTHERS = ("libc.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "ld-linux-x86-64.so.2")
_SYSTEM = ("libstdc++.so.6", "libm.so.6", "libgcc_s.so.1", *_OTHERS)
#: What every system of manylinux2014 has: PyTorch's wheels were never built for an older one.
_OLDEST = {"GLIBC": (2, 17), "GLIBCXX": (3, 4, 19), "CXXABI": (1, 3, 7), "GCC": (4, 8, 0)}
_COMPAT = Path(__file__).with_name("native") / "compat"
_ARCHIVE = "libcompat.a"
_SECTIONS = {"TLS": '.section .tbss,"awT",@nobits', "OBJECT": ".bss"}
_TYPES = {"TLS": "tls_object", "OBJECT": "object"}


@dataclass(frozen=True, slots=True)
class Export:
    """A symbol that a library exports, with its ELF type and its version, e.g. `GLIBC_2.34`."""

    name: str
    kind: str
    version: str


def parse(version: str) -> tuple[str, tuple[int, ...]] | None:
    """Split `GLIBC_2.34` into family and number; None for versions without an order, such as `GLIBC_PRIVATE`."""
    match = re.fullmatch(r"([A-Z]+)_(\d+(?:\.\d+)*)", version)
    return (match[1], tuple(map(int, match[2].split(".")))) if match else None


def ceiling(libraries: Iterable[Path]) -> dict[str, tuple[int, ...]]:
    """Return for each family the newest version that `libraries`, those of the wheel, need."""
    found = dict(_OLDEST)
    for library in libraries:
        for version in {item.version for item in dynamic(library, "Uvw")}:
            if (parts := parse(version)) and parts[0] in found:
                found[parts[0]] = max(found[parts[0]], parts[1])
    return found


def beyond(library: Path, limit: dict[str, tuple[int, ...]]) -> list[str]:
    """Return what `library` needs in versions newer than `limit`, e.g. `getrandom@GLIBC_2.25`."""
    needs = [(item, parse(item.version)) for item in dynamic(library, "Uvw")]
    newer = [item for item, parts in needs if parts and parts[1] > limit.get(*parts)]
    return sorted(f"{item.name}@{item.version}" for item in newer)


def exports(library: Path) -> Iterator[Export]:
    """Yield what `library` exports, each symbol once for each of its versions."""
    done = run(["readelf", "--wide", "--dyn-syms", library], timeout=60)
    for line in done.stdout.decode("ascii", "replace").splitlines():
        fields = line.split()
        if len(fields) >= 8 and fields[6].isdigit():
            name, _, version = fields[7].partition("@")
            yield Export(name, fields[3], version.lstrip("@"))


def choose(found: Iterable[Export], limit: dict[str, tuple[int, ...]]) -> tuple[dict[str, Export], dict[str, Export]]:
    """Choose one version of each symbol.

    Args:
        found: what a library exports.
        limit: the newest version of each family that may be needed, see `ceiling`.

    Returns:
        By name, the newest version within the limit; and for symbols without such a version, the oldest one.
    """
    versions: dict[str, list[tuple[tuple[int, ...], bool, Export]]] = defaultdict(list)
    for item in found:
        family, number = parse(item.version) or ("", ())
        if family or not item.version:
            versions[item.name].append((number, number <= limit.get(family, number), item))
    ordered = {name: sorted(every, key=lambda version: version[0]) for name, every in versions.items()}
    old = {name: [item for _, within, item in every if within] for name, every in ordered.items()}
    newer = {name: every[0][2] for name, every in ordered.items() if not old[name]}
    return {name: items[-1] for name, items in old.items() if items}, newer


def _script(chosen: Iterable[Export]) -> str:
    by_version: dict[str, list[str]] = defaultdict(list)
    for item in chosen:
        if item.version:
            by_version[item.version].append(f'"{item.name}"')
    return "".join(f"{version} {{ {'; '.join(names)}; }};\n" for version, names in sorted(by_version.items()))


def stub(toolchain: Toolchain, soname: str, chosen: list[Export], folder: Path) -> Path:
    """Make a library in `folder` to link against, in place of the real one of that name.

    Raises:
        CompileError: the toolchain cannot make it.
    """
    source, script, target = folder / f"{soname}.s", folder / f"{soname}.map", folder / soname
    # The text of a library with one symbol for each export: a function that returns 0, or an empty variable.
    lines = []
    for item in chosen:
        name = item.name
        body = ".byte 0" if item.kind in _SECTIONS else "xorl %eax, %eax; ret"
        lines.append(f"{_SECTIONS.get(item.kind, '.text')}\n.globl {name}")
        lines.append(f".type {name},@{_TYPES.get(item.kind, 'function')}\n{name}: {body}")
    source.write_text("\n".join(lines) + "\n", encoding="ascii")
    script.write_text(_script(chosen), encoding="ascii")
    versions = [f"-Wl,--version-script={script}"] if script.stat().st_size else []
    line: list[str | Path] = [toolchain.cxx, "-x", "assembler", "-shared", "-nostdlib", f"-Wl,-soname,{soname}"]
    line += [*versions, source, "-o", target]
    make(line, f"the import stub of {soname} cannot be made", remedy="set CXX to a compiler that links libraries")
    return target


def _compat(toolchain: Toolchain, folder: Path) -> Path:
    """Compile `native/compat` into an archive: the linker takes what is needed of it."""
    sources, archive = sorted(_COMPAT.glob("*.c")), folder / _ARCHIVE
    objects = [folder / f"compat-{source.stem}.o" for source in sources]
    for source, target in zip(sources, objects, strict=True):
        line: list[str | Path] = [toolchain.cxx, "-x", "c", "-std=gnu11", "-O2", "-fPIC", "-c", source, "-o", target]
        line.append(f"-ffile-prefix-map={_COMPAT}=multiworld")
        make(line, f"{source.name} does not compile", remedy="set CXX to another compiler")
    command: list[str | Path] = ["ar", "rcsD", archive, *objects]
    make(command, "the archive of compatible functions cannot be made", remedy="update binutils")
    return archive


def _file(toolchain: Toolchain, name: str) -> Path | None:
    """Return the library that the compiler would link, None if it has none of that name."""
    done = run_compiler([toolchain.cxx, f"-print-file-name={name}"], timeout=30)
    path = Path(done.stdout.decode().strip())
    return path if path.is_absolute() and path.is_file() else None


def _fill(toolchain: Toolchain, limit: dict[str, tuple[int, ...]], system: dict[str, Path], folder: Path) -> None:
    elsewhere = names(_compat(toolchain, folder)).defined.keys()
    for name, path in system.items():
        old, newer = choose(exports(path), limit)
        kept = [item for item in newer.values() if item.name not in elsewhere]
        stub(toolchain, name, [*old.values(), *kept], folder)


def prepare(toolchain: Toolchain, libraries: Iterable[Path]) -> list[str | Path]:
    """Return the linker's arguments for what stands in place of this machine's libraries, which the cache keeps.

    Args:
        libraries: those of the official wheel; nothing newer than what they need is bound where that is possible.

    Raises:
        CompileError: the toolchain cannot make the stubs.
    """
    limit = ceiling(libraries)
    system = {name: path for name in _SYSTEM if (path := _file(toolchain, name))}
    files = (Path(__file__), *sorted(_COMPAT.iterdir()), *system.values())
    parts = [toolchain.identity, repr(sorted(limit.items())), *map(sha256_of, files)]
    place = cache("runtime") / hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
    folder = built(place, "the libraries that overlays are linked against", partial(_fill, toolchain, limit, system))
    stubs = [folder / name for name in system]
    return ["-nodefaultlibs", "-Wl,--as-needed", *stubs, folder / _ARCHIVE, *stubs, "-lgcc"]
