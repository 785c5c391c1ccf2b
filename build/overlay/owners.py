"""Find the library of the wheel that has a unit, and the unit's macros, by the release's own build files.

`build_variables.bzl` lists the sources of each library, for every build system; it is read as data, never run. What is
found is an expectation: the symbols of the compiled unit prove it (`build.overlay.checks`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from build.errors import SourceError

#: The file with the sources of each library.
LISTS = "build_variables.bzl"
_CMAKE = "caffe2/CMakeLists.txt"
_CODEGEN = "cmake/Codegen.cmake"
_DEFINITION = re.compile(r"target_compile_definitions\(\s*(\w+)\s+(?:PRIVATE|PUBLIC|INTERFACE)\s+(\w+)")
#: Macros that the release sets for everything, mostly under a condition.
_GLOBAL = re.compile(
    r"add_(?:definitions|compile_options|compile_definitions)\(\s*(?:-D)?([A-Z]\w+)"
    r"|set\(CMAKE_CXX_FLAGS [^()\n]*?-D(HAVE_\w+_CPU_DEFINITION)\b",
    re.I,
)
_TESTED = re.compile(rb"^[ \t]*#[ \t]*(?:if|ifdef|ifndef|elif)\b(.*)$", re.M)
_PROPERTIES = re.compile(r"set_source_files_properties\(([^()]*)\)")
#: Flags of a file that change no code of the wheels, which are for x86-64.
_HARMLESS = re.compile(r"-W\S*|-march=armv\S*|SKIP_PRECOMPILE_HEADERS ON")
#: A library of its own: torch loads it when it is needed, in no scope where an overlay comes first.
LINALG = "libtorch_cuda_linalg.so"
#: Folders whose units are found by patterns of CMake files (c10/CMakeLists.txt, aten/src/ATen/CMakeLists.txt).
_PATTERNS = (
    ("aten/src/ATen/native/cuda/linalg", LINALG),
    ("c10/cuda", "libc10_cuda.so"),
    ("c10", "libc10.so"),
    ("aten/src/ATen/cuda", "libtorch_cuda.so"),
    ("aten/src/ATen/cudnn", "libtorch_cuda.so"),
    ("aten/src/ATen/native/cuda", "libtorch_cuda.so"),
    ("aten/src/ATen/native/cudnn", "libtorch_cuda.so"),
    ("aten/src/ATen/native/miopen", "libtorch_cuda.so"),
    ("aten/src/ATen", "libtorch_cpu.so"),
)


@dataclass(frozen=True, slots=True)
class Owners:
    """The libraries by unit, as `build_variables.bzl` lists them, and what caffe2/CMakeLists.txt says of flags.

    Attributes:
        cuda_only: macros that libtorch_cuda is compiled with, and libtorch_cpu is not.
        conditional: macros that build files set, for one library or for all.
        own_flags: names of files that have compile flags of their own, with these.
    """

    listed: dict[str, str]
    cuda_only: frozenset[str] = frozenset()
    own_flags: tuple[tuple[str, str], ...] = ()
    conditional: frozenset[str] = frozenset()

    def flags_of(self, unit: str, defines: Collection[str] = ()) -> str:
        """Return the flags that the release compiles this unit alone with, empty when it has none.

        Args:
            defines: macros, `NAME=VALUE`, that the user has decided; flags that only set these do not count.
        """
        name, said = PurePosixPath(unit).name, {item.partition("=")[0] for item in defines}
        every = (flag for file, flags in self.own_flags if file == name for flag in flags.split())
        return " ".join(flag for flag in every if flag.removeprefix("-D").partition("=")[0] not in said)

    def of(self, unit: str) -> str:
        """Return the library of a unit, empty when no library of the wheel has it."""
        path = PurePosixPath(unit)
        found = next((library for folder, library in _PATTERNS if path.is_relative_to(folder)), "")
        return found if found == LINALG else self.listed.get(unit, found)


def _library(name: str) -> str:
    """Return the library whose sources a list has, empty for headers and for builds that the wheel is not."""
    if any(part in name for part in ("header", "xpu", "mobile", "metal", "lite", "xnnpack", "tracer", "_cu_")):
        return ""
    if "python" in name:
        return "libtorch_python.so"
    return "libtorch_cuda.so" if "cuda" in name else "libtorch_cpu.so"


def listed(text: str) -> dict[str, str]:
    """Return the library of each unit that the text of `LISTS` names.

    A list that the others are made of counts once, the most special one wins. A list of a build that the wheel is not,
    such as one for phones, counts where a list of the wheel is made of it.
    """
    lists = {
        item.targets[0].id: item.value
        for item in ast.parse(text).body
        if isinstance(item, ast.Assign) and isinstance(item.targets[0], ast.Name)
    }
    found: dict[str, str] = {}
    rank = ("libtorch_cpu.so", "libtorch_cuda.so", "libtorch_python.so")
    for name, library in _libraries(lists).items():
        texts = [node.value for node in ast.walk(lists[name]) if isinstance(node, ast.Constant)]
        for unit in texts:
            if isinstance(unit, str) and rank.index(library) >= rank.index(found.get(unit, rank[0])):
                found[unit] = library
    return found


def _libraries(lists: Mapping[str, ast.expr]) -> dict[str, str]:
    """Return the library of each list that is a part of one: by its name, or by that of a list made of it."""
    found = {name: library for name in lists if (library := _library(name))}
    waiting = [name for name in lists if name in found]
    while waiting:
        made = waiting.pop()
        for node in ast.walk(lists[made]):
            if isinstance(node, ast.Name) and node.id in lists and node.id not in found:
                found[node.id] = found[made]
                waiting.append(node.id)
    return found


def read(tree: Path, lists: str | None = None) -> Owners:
    """Read the build files of a source tree; `lists` is the text of `LISTS` to use in place of the tree's.

    Raises:
        SourceError: the tree has no `LISTS`, so that the library of a unit is not known.
    """
    if lists is None:
        if not (tree / LISTS).is_file():
            what = f"the source tree has no {LISTS}, which names the library of each unit"
            raise SourceError(what, remedy="name a tree with the files of its top level, too: --source CHECKOUT@TAG")
        lists = (tree / LISTS).read_text(encoding="utf-8")
    found = listed(lists)
    places = [tree / "CMakeLists.txt", tree / _CMAKE, *sorted((tree / "cmake").glob("*.cmake"))]
    text = "".join(place.read_text(encoding="utf-8") for place in places if place.is_file())
    conditional = {macro for _, macro in _DEFINITION.findall(text)}
    conditional |= {name for found in _GLOBAL.findall(text) for name in found if name}
    return Owners(found, *_of_cmake(tree / _CMAKE), frozenset(conditional))


def macros_of(unit: Path) -> frozenset[str]:
    conditions = b" ".join(_TESTED.findall(unit.read_bytes())).decode("utf-8", "replace")
    return frozenset(re.findall(r"[A-Z_]\w+", conditions))


def _of_cmake(path: Path) -> tuple[frozenset[str], tuple[tuple[str, str], ...]]:
    """Return the macros of libtorch_cuda alone, and the flags of single files."""
    places = (path, path.parent.parent / _CODEGEN)
    text = "".join(place.read_text(encoding="utf-8") for place in places if place.is_file())
    macros: dict[str, set[str]] = {"torch_cuda": set(), "torch_cpu": set()}
    for target, macro in _DEFINITION.findall(text):
        macros.get(target, set()).add(macro)
    own = []
    for block in _PROPERTIES.findall(text):
        files, _, properties = block.partition("PROPERTIES")
        flags = properties.replace("COMPILE_FLAGS", "").replace("COMPILE_OPTIONS", "").strip(' "\n')
        if left := _HARMLESS.sub("", flags).strip(' ";'):
            own += [(name, left) for name in re.findall(r"[\w.]+\.(?:cpp|cc|c)\b", files)]
    return frozenset(macros["torch_cuda"] - macros["torch_cpu"]), tuple(own)
