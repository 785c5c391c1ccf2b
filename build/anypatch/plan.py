"""What a patch changes, file by file, and what serves each change: overlay, patched wheel, or only a full build."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from build.errors import NeedsFullBuildError, PatchError
from build.overlay import layout
from build.overlay.owners import Owners, read

#: Units that are compiled for changed headers, unless the user says otherwise.
MOST_UNITS = 40
#: Seconds of one unit on one core, measured on 2.6.0: 7 to 31; for the estimate only.
_SECONDS = 20
_IGNORED = re.compile(
    r"(test|tests|docs|benchmarks|scripts|android|ios|binaries|\.github|\.ci|\.circleci|\.devcontainer|\.vscode)/|"
    r".*\.(md|rst|txt|ini|toml|cff)$|[^/]*$|torch/csrc/.*/README.*"
)
_BUILD = re.compile(
    r"(.*/)?(CMakeLists\.txt|.*\.cmake|.*\.cmake\.in|BUILD|BUILD\.bazel|.*\.bzl)$|cmake/|setup\.py$|version\.txt$|"
    r"(requirements.*\.txt|pyproject\.toml|Makefile)$|third_party/|\.gitmodules$"
)
_GENERATED = re.compile(
    r"torchgen/|tools/|aten/src/ATen/(native/.*\.yaml|templates/)|.*\.(yaml|in|fbs|proto|template)$"
)
_DEVICE = (".cu", ".cuh")
#: Kernels that are compiled once per instruction set, with flags of their own (cmake/Codegen.cmake).
_PER_FILE = ("aten/src/ATen/native/cpu/", "aten/src/ATen/native/quantized/cpu/kernels/")


@dataclass(frozen=True, slots=True)
class Limits:
    """What the user allows and knows.

    Attributes:
        most_units: units that may be compiled for one changed header.
        defines: macros, `NAME=VALUE`, with which the wheel was built; `NAME=0`: without.
    """

    most_units: int = MOST_UNITS
    defines: tuple[str, ...] = ()


DEFAULT = Limits()


class Serves(Enum):
    """What serves a change."""

    OVERLAY = "overlay"
    HEADER = "overlay, and the header in the patched wheel"
    PYTHON = "patched wheel only"
    NOTHING = "nothing to do"
    FULL = "full build only"


@dataclass(frozen=True, slots=True)
class Row:
    """One changed file: what serves it, and why; for a header, the units that include it."""

    path: str
    serves: Serves
    why: str
    units: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """What a set of patches needs.

    Attributes:
        units: the units to compile, with the reason for each.
        owners: the library that each of them is expected in.
    """

    rows: tuple[Row, ...]
    units: dict[str, str]
    owners: dict[str, str]

    @property
    def python(self) -> tuple[str, ...]:
        return tuple(row.path for row in self.rows if row.serves is Serves.PYTHON)

    @property
    def refused(self) -> tuple[Row, ...]:
        return tuple(row for row in self.rows if row.serves is Serves.FULL)

    def seconds(self, cores: int) -> int:
        """Return about how long the compilers run, if nothing is cached."""
        return -(-len(self.units) * _SECONDS // cores)

    def require(self) -> None:
        """Raise NeedsFullBuildError, which names each refused file, or PatchError when there is nothing to build."""
        if self.refused:
            raise NeedsFullBuildError(
                f"an overlay cannot serve {len(self.refused)} of {len(self.rows)} changed files",
                cause="\n".join(f"{row.path}: {row.why}" for row in self.refused),
                remedy="take these changes out of the patch, or make a full build of the patched tree: "
                "all units of PyTorch, many core-hours and, for device code, the CUDA toolkit",
            )
        if not self.units:
            raise PatchError(
                "the patch changes no host code of the wheel",
                cause="\n".join(f"{row.path}: {row.serves.value}, {row.why}" for row in self.rows),
                remedy="Python files alone need no build: install the official wheel and replace them, or add a unit",
            )


def _row(tree: Path, path: str, owners: Owners, defines: Collection[str]) -> Row | None:
    """Return the row of a file that is no header, None for a header."""
    if path.endswith(_DEVICE):
        return Row(path, Serves.FULL, "device code needs nvcc of the wheel's CUDA release")
    if _BUILD.match(path):
        return Row(path, Serves.FULL, "a build file decides what is compiled and how")
    if _GENERATED.match(path):
        return Row(path, Serves.FULL, "code is generated from it, for all libraries")
    if path.endswith((".py", ".pyi")) and path.startswith(("torch/", "functorch/")):
        return Row(path, Serves.PYTHON, "replaced in the patched wheel; an overlay wheel changes no file of torch")
    if layout.is_header(path):
        return None
    if layout.is_unit(path):
        return _unit(tree, path, owners, defines)
    if _IGNORED.match(path):
        return Row(path, Serves.NOTHING, "not in the wheel")
    return Row(path, Serves.FULL, "no rule of this tool knows what the wheel has of it")


def _unit(tree: Path, path: str, owners: Owners, defines: Collection[str]) -> Row:
    library = owners.of(path)
    if not (tree / path).is_file():
        return Row(path, Serves.FULL, "the unit is new or removed, which changes the build files")
    if layout.outside_wheel(path) or not library:
        return Row(path, Serves.NOTHING, "in no library of the wheel")
    if path.startswith(_PER_FILE):
        return Row(path, Serves.FULL, "compiled once per instruction set, with flags of its own")
    if flags := owners.flags_of(path, defines):
        return Row(
            path,
            Serves.FULL,
            f"compiled with flags of its own ({flags[:60]}): say --define NAME=1 or =0 for each macro",
        )
    if library == "libtorch_python.so":
        return Row(path, Serves.FULL, "a unit of libtorch_python, which is compiled once per Python version")
    return Row(path, Serves.OVERLAY, f"a unit of {library}", (path,))


def _header(tree: Path, path: str, owners: Owners, by_header: dict[str, set[str]], limits: Limits) -> Row:
    """Judge a changed header by the units of the wheel that include it: all of them have to be recompiled."""
    most, defines = limits.most_units, limits.defines
    found = sorted(layout.units_including(by_header, path))
    device = [unit for unit in found if unit.endswith(_DEVICE)]
    units = [unit for unit in found if unit not in device and owners.of(unit)]
    if device:
        return Row(path, Serves.FULL, f"{len(device)} device units include it, e.g. {device[0]}")
    if len(units) > most:
        cost = f"{', '.join(units[:3])}, …; about {len(units) * _SECONDS} core-seconds"
        return Row(path, Serves.FULL, f"{len(units)} units include it ({cost}); --most-units {len(units)} allows it")
    unfit = [row for unit in units if (row := _unit(tree, unit, owners, defines)).serves is Serves.FULL]
    if unfit:
        return Row(path, Serves.FULL, f"{unfit[0].path} includes it: {unfit[0].why}")
    if not units:
        return Row(path, Serves.NOTHING, "no unit of the wheel includes it")
    return Row(path, Serves.HEADER, f"{len(units)} units include it", tuple(units))


def make(tree: Path, changed: Iterable[str], limits: Limits = DEFAULT, present: Collection[str] | None = None) -> Plan:
    """Plan what serves the changes of `changed` paths.

    Args:
        tree: the source tree of the release, patched or not.
        limits: what the user allows and knows.
        present: if given, the paths that `changed` still has after the patch: the others are removed.
    """
    owners = read(tree)
    rows: list[Row] = []
    headers = []
    for path in sorted(changed):
        row = _row(tree, path, owners, limits.defines)
        if present is not None and path not in present and (row is None or row.serves is Serves.OVERLAY):
            row = Row(path, Serves.FULL, "the patch removes it, which changes the build files")
        rows += [row] if row else []
        headers += [path] if row is None else []
    by_header = layout.includers(tree) if headers else {}
    rows += [_header(tree, path, owners, by_header, limits) for path in headers]
    reasons = {row.path: "changed by the patch" for row in rows if row.serves is Serves.OVERLAY}
    for row in rows:
        if row.serves is Serves.HEADER:
            reasons |= {unit: f"includes {row.path}" for unit in row.units if unit not in reasons}
    return Plan(tuple(sorted(rows, key=lambda row: row.path)), reasons, {unit: owners.of(unit) for unit in reasons})
