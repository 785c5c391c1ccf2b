"""The checks that an overlay must pass, as far as files can show it, before it counts as built."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from build.errors import OverlayCheckError
from build.overlay import touched
from build.overlay.model import LIBRARIES, Check, Inputs, Object
from build.overlay.runtime import beyond, ceiling
from build.overlay.symbols import Table, demangle, exported, exports, names, scoped_name
from build.runtime.multiworld_torch_overlay._load import build_id

#: Kind of symbol that is code: the linker keeps the code of one object file together.
_TEXT = "T"
#: Bytes; the largest function of the units is below 64 KiB, and units of other files between two of theirs are not.
_WIDEST_GAP = 1 << 17


def _exports(inputs: Inputs, libraries: Sequence[str]) -> set[str]:
    return {name for library in libraries for name in exported(inputs.lib / library)}


def replaced_symbols(inputs: Inputs, overlay: Path) -> frozenset[str]:
    """Return the exported stock symbols that the overlay defines, without those of the standard library."""
    ours, stock = exported(overlay), _exports(inputs, inputs.replaceable)
    return frozenset(name for name, symbol in ours.items() if name in stock and not symbol.standard)


def spans(units: Iterable[Object], stock: Table) -> list[tuple[int, int]]:
    """Return the address ranges of the units' code in the stock library, from the functions known to be theirs."""
    found = []
    for unit in units:
        known = (stock[name] for name in names(unit.path).of_kind(_TEXT) if name in stock)
        # Split sorted addresses where a gap is wider than a unit: linkers put cold and start-up code far from the rest.
        apart: list[tuple[int, int]] = []
        for place in sorted(item.address for item in known if item.kind in _TEXT):
            if apart and place - apart[-1][1] <= _WIDEST_GAP:
                apart[-1] = (apart[-1][0], place)
            else:
                apart.append((place, place))
        found += apart
    return found


def half_replaced(inputs: Inputs, overlay: Path, units: Sequence[Object]) -> frozenset[str]:
    """Return exported stock functions that belong to the recompiled units and that the overlay lacks.

    Object files follow each other in a library, so an exported function between the first and the last known function
    of a unit belongs to that unit too.
    """
    ours = exported(overlay)
    missing: set[str] = set()
    for library in inputs.replaceable:
        stock = exported(inputs.lib / library)
        ranges = spans(units, stock)
        missing |= {
            name
            for name, item in stock.items()
            if item.kind in _TEXT and name not in ours and any(low <= item.address <= high for low, high in ranges)
        }
    return frozenset(missing)


def check_complete(inputs: Inputs, overlay: Path, units: Sequence[Object]) -> Check:
    """Check that the overlay replaces units completely: it defines every exported symbol of the stock units."""
    missing = half_replaced(inputs, overlay, units)
    replaced = replaced_symbols(inputs, overlay)
    spelt = sorted(demangle(missing).values())
    detail = f"missing: {', '.join(spelt)}" if spelt else f"{len(replaced)} exported symbols, all of them replaced"
    return Check("every exported symbol of the stock units is defined by the overlay", not missing, detail)


def check_made_for(inputs: Inputs) -> Check:
    have = build_id(inputs.lib / "libtorch_cuda.so")
    want = inputs.release.wheel.libtorch_cuda_build_ids.get(inputs.python, "none")
    detail = f"build id {have}" if have == want else f"build id {have or 'none'}, pinned {want}"
    return Check("libtorch_cuda.so is the pinned build", have == want, detail)


def check_stock(inputs: Inputs) -> Check:
    """Check that the unpacked wheel has no overlay yet: its libraries are those of stock in any case."""
    found = sorted(path.name for path in inputs.lib.glob("libtorch_mw*.so"))
    return Check("the wheel has no overlay yet", not found, ", ".join(found) or "none in torch/lib")


def check_of_wheel(inputs: Inputs, units: Sequence[Object]) -> Check:
    """Check that the wheel's libraries have each unit: they export some of what the unpatched unit exports."""
    stock = _exports(inputs, inputs.replaceable)
    lacking = []
    for unit in units:
        own = exports(unit.path) - stock
        if own and not exports(unit.path) & stock and _known(inputs, unit, own):
            lacking.append(f"{unit.unit}, which exports {sorted(demangle(own).values())[0]}")
    detail = f"in none of them: {'; '.join(lacking)}" if lacking else ", ".join(inputs.replaceable)
    return Check("the libraries that the overlay replaces have its units", not lacking, detail)


def _known(inputs: Inputs, unit: Object, own: Iterable[str]) -> bool:
    """Return whether a unit has one of these functions without the patches, by its text."""
    path = inputs.tree / unit.unit
    text = inputs.originals.get(unit.unit)
    if text is None:
        text = "" if unit.unit in inputs.changed else path.read_text(encoding="utf-8", errors="surrogateescape")
    functions = touched.read(text).functions
    return any(scoped_name(spelt)[1] in functions for spelt in demangle(own).values())


def check_age(inputs: Inputs, overlay: Path) -> Check:
    """List what the overlay needs of newer C and C++ libraries than the official wheel; the platform tag says it."""
    limit = ceiling([inputs.lib / name for name in LIBRARIES])
    newer = beyond(overlay, limit)
    spelt = ", ".join(f"{family}_{'.'.join(map(str, number))}" for family, number in limit.items())
    detail = f"newer than {spelt}: {', '.join(newer)}" if newer else f"at most {spelt}"
    return Check("the overlay needs the C and C++ libraries that the official wheel needs", True, detail)


def require(checks: Sequence[Check]) -> None:
    """Raise OverlayCheckError, which lists the failed checks, if there are any."""
    failed = [check for check in checks if not check.passed]
    if failed:
        lines = "".join(f"\n- {check.name}: {check.detail}" for check in failed)
        raise OverlayCheckError(f"the overlay fails its checks:{lines}", remedy="read the log; dist/ is unchanged")
