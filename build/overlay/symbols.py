"""Symbols of objects and shared libraries, by `nm`: libtorch_cuda.so has 100,000 of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import NoteSection

from build.errors import WheelError
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
        """Whether it is an ordinary definition: a program may have only one of its name."""
        return self.kind not in _WEAK and self.kind != "U"

    @property
    def standard(self) -> bool:
        return self.name.startswith(_STD)


def _parse(text: bytes) -> Iterator[Symbol]:
    """Read `nm --format=posix`: name, letter, value and size in hexadecimal."""
    for line in text.decode("ascii", "replace").splitlines():
        fields = line.split()
        if len(fields) >= 2:
            numbers = [int(field, 16) for field in fields[2:4]] + [0, 0]
            name, _, version = fields[0].partition("@")
            yield Symbol(name, fields[1], numbers[0], numbers[1], version.lstrip("@"))


def _nm(path: Path, *, dynamic: bool) -> bytes:
    done = run(["nm", "--format=posix", *(["-D"] if dynamic else []), path], timeout=300)
    if done.returncode:
        raise WheelError(f"cannot read the symbols of {path.name}", cause=done.tail)
    return done.stdout


@lru_cache(maxsize=64)
def table(path: Path, *, dynamic: bool) -> tuple[Symbol, ...]:
    """Return the full symbol table of an object or library, or the dynamic one, which other libraries see.

    Raises:
        WheelError: it is not an ELF file that `nm` can read.
    """
    return tuple(_parse(_nm(path, dynamic=dynamic)))


def defined(path: Path, *, dynamic: bool) -> dict[str, Symbol]:
    return {item.name: item for item in table(path, dynamic=dynamic) if item.kind not in "Uvw"}


def defined_among(path: Path, names: Iterable[str]) -> dict[str, Symbol]:
    """Return the symbols of `names` that `path` defines; faster than `defined` on a library with 500,000 symbols."""
    wanted = {name.encode() for name in names}
    lines = [line for line in _nm(path, dynamic=False).splitlines() if line.split(b" ", 1)[0] in wanted]
    return {item.name: item for item in _parse(b"\n".join(lines)) if item.kind not in "Uvw"}


def undefined(paths: Iterable[Path]) -> frozenset[str]:
    """Return what the objects `paths` need and none of them defines."""
    every = [item for path in paths for item in table(path, dynamic=False)]
    have = {item.name for item in every if item.kind not in "Uvw"}
    return frozenset(item.name for item in every if item.kind == "U") - have


def demangle(names: Iterable[str]) -> dict[str, str]:
    ordered = sorted(set(names))
    done = run(["c++filt"], stdin="\n".join(ordered).encode(), timeout=120)
    return dict(zip(ordered, done.stdout.decode("utf-8", "replace").splitlines(), strict=True))


def build_id(path: Path) -> str:
    """Return the GNU build id of a library as hexadecimal digits, empty when it has none."""
    try:
        with path.open("rb") as stream:
            for section in ELFFile(stream).iter_sections():
                if isinstance(section, NoteSection):
                    for item in section.iter_notes():
                        if item["n_type"] == "NT_GNU_BUILD_ID":
                            return str(item["n_desc"])
    except ELFError as error:
        raise WheelError(f"{path.name} is not an ELF file", cause=str(error)) from None
    return ""


def run_path(path: Path) -> str:
    """Return the DT_RPATH or DT_RUNPATH of a library, empty when it has none."""
    with path.open("rb") as stream:
        dynamic = ELFFile(stream).get_section_by_name(".dynamic")
        for tag in dynamic.iter_tags() if dynamic else ():
            if tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH"):
                return str(getattr(tag, "rpath", None) or tag.runpath)
    return ""


def needed(path: Path) -> tuple[str, ...]:
    """Return the DT_NEEDED entries of a library, in order."""
    with path.open("rb") as stream:
        dynamic = ELFFile(stream).get_section_by_name(".dynamic")
        return tuple(tag.needed for tag in dynamic.iter_tags("DT_NEEDED")) if dynamic else ()
