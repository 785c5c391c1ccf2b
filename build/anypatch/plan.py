"""The changes of a patch, file by file, each with what serves it: overlay, patched wheel, or only a full build."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from build.console import counted
from build.errors import NeedsFullBuildError, PatchError
from build.git import Git
from build.overlay import layout
from build.overlay.flags import NEVER
from build.overlay.model import PYTHON
from build.overlay.owners import LINALG, LISTS, Owners, listed, read
from build.overlay.touched import bare
from build.releases import Define
from build.series.apply import changed_paths
from build.series.model import ChangeKind

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
_NO_NVCC = (
    "device code needs nvcc of the wheel's CUDA release: the package index has none for CUDA 12, whose libcu++ "
    "clang 16 cannot read; with CUDA 13 it is not verified"
)
#: What no overlay serves, with the reason; the first that fits is said.
_REFUSED = (
    (re.compile(r".*\.cuh?$"), _NO_NVCC),
    (re.compile("third_party/"), "a submodule is compiled into the wheel's libraries, and into what includes it"),
    (re.compile("torch/lib/"), "a library or program of its own, such as libshm, which no overlay replaces"),
    (_BUILD, "a build file decides what is compiled and how"),
    (_GENERATED, "code is generated from it, for all libraries"),
)
_DEVICE = (".cu", ".cuh")
#: Files of the Python package; the headers among them are for code that torch compiles when it runs.
_PACKAGE = re.compile(r"torch/.*\.pyi?$|torch/(?!csrc/|headeronly/|nativert/)[^/]+/.*\.(h|hpp)$")
#: Kernels that are compiled once per instruction set, with flags of their own (cmake/Codegen.cmake).
_PER_FILE = ("aten/src/ATen/native/cpu/", "aten/src/ATen/native/quantized/cpu/kernels/")


_REMOVED = "the patch removes it, but its compiled code stays in the library, and runs when that is loaded"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits and macros given by the user, macros of the release's entry, and headers that a series declares safe."""

    most_units: int = MOST_UNITS
    defines: tuple[str, ...] = ()
    known: tuple[Define, ...] = ()
    safe: Mapping[str, str] = field(default_factory=dict)

    def decided(self, unit: str) -> list[str]:
        """Return the macros of a unit that are decided, by the user or by the release's entry."""
        known = (item.macro for item in self.known if not item.units or unit in item.units)
        return [*self.defines, *known]


DEFAULT = Limits()


class Serves(Enum):
    """Artifacts that serve a change."""

    OVERLAY = "overlay"
    HEADER = "overlay, and the header in the patched wheel"
    PYTHON = "patched wheel only"
    ALONE = "patched wheel only, if it has this header"
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
class Change:
    """The changes of a set of patches to the tree.

    Attributes:
        paths: the changed files.
        added: those that the release does not have.
        removed: those that are gone after the last patch.
        lists: the text of `build_variables.bzl` before and after, if the patches change it.
        outside: files that the patches change and that imported trees do not have.
        by: what the patches are called in reasons: a patch of the user, or a series of this project.
    """

    paths: frozenset[str]
    added: frozenset[str] = frozenset()
    removed: frozenset[str] = frozenset()
    lists: tuple[str, str] | None = None
    outside: frozenset[str] = frozenset()
    by: str = "patch"

    @property
    def names_only_new_units(self) -> bool:
        """Return whether the lists of sources change only in that they name new units."""
        if self.lists is None:
            return False
        before, after = map(listed, self.lists)
        return before.items() <= after.items() and after.keys() - before.keys() <= self.added


def changes(git: Git, base: str, head: str, outside: frozenset[str] = frozenset(), by: str = "patch") -> Change:
    """Return what differs between a release's commit and its patched one; `outside` and `by`: see `Change`."""
    every = changed_paths(git, base, head)
    gone = {item.old_path for item in every if item.kind in {ChangeKind.DELETED, ChangeKind.RENAMED}}
    new = {item.path for item in every if item.kind in {ChangeKind.ADDED, ChangeKind.RENAMED, ChangeKind.COPIED}}
    paths = frozenset(item.path for item in every) | gone
    lists = None
    if LISTS in paths - gone - new:
        before, after = ((data or b"").decode() for data in git.blobs([f"{base}:{LISTS}", f"{head}:{LISTS}"]))
        lists = (before, after)
    return Change(paths, frozenset(new), frozenset(gone), lists, outside, by)


@dataclass(frozen=True, slots=True)
class Plan:
    """What serves each file, the units to compile with the reasons, and the libraries of the release's units."""

    rows: tuple[Row, ...]
    units: dict[str, str]
    owners: Owners

    @property
    def python(self) -> tuple[str, ...]:
        return tuple(row.path for row in self.rows if row.serves is Serves.PYTHON)

    @property
    def alone(self) -> tuple[str, ...]:
        """The headers that no unit includes: code that is compiled against the wheel does."""
        return tuple(row.path for row in self.rows if row.serves is Serves.ALONE)

    @property
    def per_python(self) -> bool:
        return PYTHON in map(self.owners.of, self.units)

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
                remedy="take these changes out of the patch, or make a full build of the patched tree",
            )
        if not self.units and not self.python and not self.alone:
            raise self.nothing()

    def nothing(self) -> PatchError:
        """Return the error of a patch that changes nothing in the wheel."""
        return PatchError(
            "the patch changes nothing that is in the wheel",
            cause="\n".join(f"{row.path}: {row.serves.value}, {row.why}" for row in self.rows),
            remedy="nothing to build: the official wheel is the same with and without the patch",
        )


def _row(tree: Path, path: str, owners: Owners, change: Change, limits: Limits) -> Row | None:
    if path == LISTS and change.names_only_new_units:
        return Row(path, Serves.NOTHING, "it names new units only")
    if reason := next((why for pattern, why in _REFUSED if pattern.match(path)), ""):
        return Row(path, Serves.FULL, reason)
    if _PACKAGE.match(path):
        return Row(path, Serves.PYTHON, "replaced in the patched wheel; an overlay wheel changes no file of torch")
    if layout.is_header(path):
        return None
    if layout.is_unit(path):
        return _unit(tree, path, owners, limits, change.added)
    return _outside(path)


def _unit(tree: Path, path: str, owners: Owners, limits: Limits, added: Collection[str] = frozenset()) -> Row:
    library = owners.of(path)
    if path in added and not library and not layout.outside_wheel(path):
        return Row(path, Serves.FULL, f"a new unit, which {LISTS} does not name: which library would it be in?")
    if layout.outside_wheel(path) or not library:
        return Row(path, Serves.NOTHING, "in no library of the CUDA wheels: a test, or for another device")
    if path not in added and not (tree / path).is_file():
        return Row(path, Serves.FULL, _REMOVED)
    if library == LINALG:
        return Row(path, Serves.FULL, f"a unit of {LINALG}, which torch loads apart: no overlay replaces it")
    # Its text without comments and without what the wheels lack, and a macro that they lack.
    unit = tree / path
    said = {item.partition("=")[0] for item in limits.decided(path) if not item.endswith("=0")}
    source = unit.read_text(encoding="utf-8", errors="surrogateescape") if unit.is_file() else ""
    text, macro = layout.alive(bare(source), NEVER - said)
    if macro and not any(line.strip() and not line.lstrip().startswith("#") for line in text.splitlines()):
        return Row(path, Serves.NOTHING, f"all of it is under {macro}, without which the wheels are built")
    if name := layout.registration(text):
        return Row(path, Serves.FULL, f"it would register twice: {name}: stock has registered that when it is loaded")
    if path.startswith(_PER_FILE):
        return Row(path, Serves.FULL, "compiled once per instruction set, with flags of its own")
    if flags := owners.flags_of(path, limits.decided(path)):
        only_macros = all(flag.startswith("-D") for flag in flags.split())
        advice = ": say --define NAME=1 or =0 for each macro" if only_macros else ""
        return Row(path, Serves.FULL, f"compiled with flags of its own ({flags[:60]}){advice}")
    if library == PYTHON:
        return Row(path, Serves.OVERLAY, "a unit of libtorch_python: the wheels are for one Python version", (path,))
    return Row(path, Serves.OVERLAY, f"a {'new ' if path in added else ''}unit of {library}", (path,))


def _outside(path: str) -> Row:
    """Judge a changed file that imported trees do not have: it is not in the wheel, or decides what is in it."""
    if reason := next((why for pattern, why in _REFUSED if pattern.match(path)), ""):
        return Row(path, Serves.FULL, reason)
    if _IGNORED.match(path):
        return Row(path, Serves.NOTHING, "not in the wheel")
    return Row(path, Serves.FULL, "no rule of this tool knows what the wheel has of it")


def _header(tree: Path, path: str, owners: Owners, by_header: dict[str, set[str]], limits: Limits) -> Row:
    """Judge a changed header by the units of the wheel that include it: all of them have to be recompiled."""
    if path in limits.safe:
        return Row(path, Serves.NOTHING, f"declared safe: {limits.safe[path]}")
    most = limits.most_units
    found = sorted(layout.units_including(by_header, path))
    device = [unit for unit in found if unit.endswith(_DEVICE)]
    generators = [path for path in found if path.startswith(layout.GENERATORS)]
    units = [unit for unit in found if unit not in {*device, *generators} and owners.of(unit)]
    if generators:
        return Row(path, Serves.FULL, f"code that is generated from {generators[0]} includes it, or what includes it")
    if device:
        return Row(path, Serves.FULL, f"included by {counted(len(device), 'device unit')}, e.g. {device[0]}")
    if len(units) > most:
        cost = f"{', '.join(units[:3])}, …; about {len(units) * _SECONDS} core-seconds"
        why = f"included by {counted(len(units), 'unit')} ({cost}); --most-units {len(units)} allows it"
        return Row(path, Serves.FULL, why)
    judged = [_unit(tree, unit, owners, limits) for unit in units]
    units = [row.path for row in judged if row.serves is not Serves.NOTHING]
    if unfit := [row for row in judged if row.serves is Serves.FULL]:
        return Row(path, Serves.FULL, f"{unfit[0].path} includes it: {unfit[0].why}")
    if not units:
        why = "no unit of the wheel includes it; code of others, which has to be compiled anew"
        return Row(path, Serves.ALONE, why)
    return Row(path, Serves.HEADER, f"included by {counted(len(units), 'unit')}", tuple(units))


def make(tree: Path, change: Change, limits: Limits = DEFAULT) -> Plan:
    """Plan what serves a set of patches.

    Args:
        tree: the source tree of the release, patched or not.
        limits: what the user allows and knows.
    """
    owners = read(tree, change.lists[1] if change.lists else None)
    rows: list[Row] = []
    headers = []
    for path in sorted(change.paths):
        row = _row(tree, path, owners, change, limits)
        if path in change.removed and (row is None or row.serves is Serves.OVERLAY):
            row = Row(path, Serves.FULL, _REMOVED)
        rows += [row] if row else []
        headers += [path] if row is None else []
    rows += map(_outside, change.outside)
    by_header = layout.includers(tree) if headers else {}
    rows += [_header(tree, path, owners, by_header, limits) for path in headers]
    reasons = {row.path: f"changed by the {change.by}" for row in rows if row.serves is Serves.OVERLAY}
    for row in rows:
        if row.serves is Serves.HEADER:
            reasons |= {unit: f"includes {row.path}" for unit in row.units if unit not in reasons}
    return Plan(tuple(sorted(rows, key=lambda row: row.path)), reasons, owners)
