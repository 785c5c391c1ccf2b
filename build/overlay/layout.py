"""Refuse a series whose changes are visible to units outside the overlay."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from build.errors import NeedsFullBuildError

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*[<"]([^>"\n]+)[>"]', re.M)
_HEADERS = (".h", ".hpp", ".cuh", ".inl", ".inc")
_UNITS = (".cpp", ".cc", ".cu", ".mm")
_ROOTS = ("torch", "aten/src/ATen", "c10", "caffe2")
#: Not part of any library of the wheel.
_OUTSIDE_WHEEL = re.compile(r"(^|/)(test|tests|benchmark|benchmarks|mps|xpu|hip|ios|android)/|_test\.cpp$|(^|/)test_")


def outside_wheel(path: str) -> bool:
    """Whether a unit is in no library of the CUDA wheels: tests, and code for other devices."""
    return bool(_OUTSIDE_WHEEL.search(path))


def is_header(path: str) -> bool:
    return path.endswith(_HEADERS)


def is_unit(path: str) -> bool:
    """Whether a changed path is a host translation unit that an overlay can recompile."""
    return path.endswith((".cpp", ".cc")) and path.startswith(("torch/csrc/", "aten/src/", "c10/"))


def includers(tree: Path) -> dict[str, set[str]]:
    """Return for each header, by file name, the files of the tree that include it.

    By file name, not by path: one includer too many only requires a reason, one too few breaks a layout.
    """
    by_header: dict[str, set[str]] = defaultdict(set)
    for root in _ROOTS:
        for path in (tree / root).rglob("*"):
            if path.suffix in (*_HEADERS, *_UNITS) and path.is_file():
                for name in _INCLUDE.findall(path.read_bytes()):
                    by_header[name.decode("utf-8", "replace").rpartition("/")[2]].add(str(path.relative_to(tree)))
    return by_header


def units_including(by_header: Mapping[str, set[str]], header: str) -> frozenset[str]:
    """Return the units that include `header`, directly or through other headers."""
    seen: set[str] = set()
    todo = [header]
    while todo:
        for includer in by_header.get(todo.pop().rpartition("/")[2], set()) - seen:
            seen.add(includer)
            if is_header(includer):
                todo.append(includer)
    return frozenset(item for item in seen if item.endswith(_UNITS) and not _OUTSIDE_WHEEL.search(item))


def check_paths(tree: Path, changed: Collection[str]) -> None:
    """Refuse changes that an overlay cannot contain: device code, Python, build files, removed files."""
    others = sorted(path for path in changed if not is_header(path) and not is_unit(path))
    others += [f"{path} (removed)" for path in sorted(changed) if path not in others and not (tree / path).is_file()]
    if others:
        raise NeedsFullBuildError(
            f"the series changes what an overlay cannot replace: {', '.join(others)}",
            cause="an overlay recompiles host C++ units only",
            remedy="take these changes out of the series, or make a full build",
        )


def check_headers(tree: Path, changed: Iterable[str], units: Iterable[str], safe: Mapping[str, str]) -> str:
    """Refuse a changed header that a unit outside the overlay includes, unless `safe` has a reason for it.

    Returns:
        What was found, for the build record.
    """
    found = []
    headers = sorted(path for path in changed if is_header(path))
    by_header = includers(tree) if headers else {}
    for header in headers:
        outside = sorted(units_including(by_header, header) - set(units))
        if outside and header not in safe:
            some = ", ".join(outside[:12]) + (f" and {len(outside) - 12} more" if len(outside) > 12 else "")
            raise NeedsFullBuildError(
                f"the series changes {header}, which {len(outside)} units outside the overlay include: {some}",
                cause="their compiled code in the official wheel has the old layout and values",
                remedy="keep the change out of the header; or, if it cannot alter layout or values there, declare it "
                "under `header_changes` in the series' manifest with the reason; or make a full build",
            )
        reason = f"declared safe: {safe[header]}" if outside else "no unit outside the overlay includes it"
        found.append(f"{header}: {reason}")
    return "; ".join(found) or "the series changes no header"
