"""Another overlay where a new one shall go: in a wheel, or in an environment. A process can have one only."""

from __future__ import annotations

import contextlib
import re
import tempfile
import zipfile
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from build import record
from build.errors import OverlayCheckError, UsageError, reading
from build.overlay import touched
from build.overlay.symbols import demangle, exported, scoped_name

#: Where a patched wheel and an overlay wheel have their overlay.
_PLACES = ("torch/lib/libtorch_mw*.so", "multiworld_torch_overlay/lib/libtorch_mw*.so")
_RECORDS = ("torch-*", "multiworld_torch_overlay-*")
_MEMBER = re.compile(
    r"(torch|multiworld_torch_overlay)/lib/libtorch_mw[^/]*\.so"
    rf"|(torch|multiworld_torch_overlay)-[^/]*\.dist-info/{re.escape(record.EMBEDDED)}"
)
_MOST_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Present:
    """An overlay that is there already: its name for messages, what it replaces, demangled, and the units in it."""

    name: str
    symbols: frozenset[str]
    units: frozenset[str]

    def shared(self, tree: Path, units: Iterable[str]) -> list[str]:
        """Return the symbols that an overlay of these units of a tree replaces as well, by the texts of the units."""
        texts = ((tree / unit).read_text(encoding="utf-8", errors="surrogateescape") for unit in units)
        names = {name for text in texts for name in touched.read(text).functions}
        return sorted(symbol for symbol in self.symbols if scoped_name(symbol)[1] in names)


def _records(top: Path) -> dict[str, record.Provenance]:
    """Return the provenances of what is installed in a folder, by the names of their overlays."""
    found = {}
    for pattern in _RECORDS:
        for path in top.glob(f"{pattern}.dist-info/{record.EMBEDDED}"):
            if made := record.read_json(path, record.Provenance):
                found[made.soname] = made
    return found


@contextlib.contextmanager
def _tops(path: Path) -> Iterator[list[Path]]:
    """Yield the folders where packages lie: of an environment, of a folder of packages, or what a wheel has."""
    if path.is_dir():
        places = ("lib/python*/site-packages", "lib/python*/dist-packages", "local/lib/python*/dist-packages")
        yield [path, *(found for place in places for found in path.glob(place))]
        return
    with tempfile.TemporaryDirectory(prefix="beside-") as scratch, reading(str(path)), zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if _MEMBER.fullmatch(name):
                archive.extract(name, scratch)
        yield [Path(scratch)]


def overlays(path: Path) -> tuple[Present, ...]:
    """Return the overlays in a wheel, an environment or a folder of packages.

    Raises:
        UsageError: there is no such file or folder.
        WheelError: it is a damaged wheel, or an overlay in it is no library.
    """
    if not path.exists():
        raise UsageError(f"--beside {path}: no such file or folder", remedy="give a wheel, or an environment")
    found = []
    with _tops(path) as tops:
        if path.is_dir() and not any(item.suffix == ".dist-info" for top in tops for item in top.iterdir()):
            remedy = "give a wheel file, or the folder of an environment"
            raise UsageError(f"--beside {path}: nothing is installed there", remedy=remedy)
        for top in tops:
            made = _records(top)
            for library in (item for pattern in _PLACES for item in sorted(top.glob(pattern))):
                proven = made.get(library.name)
                strong = [name for name, item in exported(library).items() if item.strong]
                units = frozenset(item.unit for item in proven.units) if proven else frozenset[str]()
                version = f" of torch {proven.version}" if proven else ""
                symbols = frozenset(demangle(strong).values())
                found.append(Present(f"{library.name}{version} in {path}", symbols, units))
    return tuple(found)


def refuse(path: Path | None, tree: Path, units: Collection[str], name: str) -> None:
    """Raise OverlayCheckError, with the symbols that both replace, where an overlay is there already.

    Args:
        path: the wheel, environment or folder of packages that the new overlay is meant for; None for a stock one.
        units: the units of the new overlay.
        name: what the new overlay is called in the message.
    """
    found = overlays(path) if path else ()
    for present in found if units else ():  # without units there is no new overlay
        common = sorted(present.units & set(units))
        shared = present.shared(tree, common or ([] if present.units else units))
        lines = [f"both would replace {symbol}" for symbol in shared[:_MOST_SHOWN]]
        lines += [f"and {len(shared) - _MOST_SHOWN} more symbols"] if len(shared) > _MOST_SHOWN else []
        lines += [f"both recompile {unit}" for unit in common]
        none = "no unit that the patch changes is in both, but torch's libraries are bound to one overlay only"
        what = f"{present.name} is there already, and {name} would not be in force beside it"
        remedy = "build the patches of both together, --patches FOLDER; or leave --beside out, to replace that one"
        raise OverlayCheckError(what, cause="\n".join(lines or [none]), remedy=remedy)
