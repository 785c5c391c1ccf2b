"""Compile one unit, reusing its object when everything that went into it is the same."""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import msgspec

from build import leases, seals
from build.console import note
from build.errors import CompileError, DigestMismatchError, EnvironmentUnfitError, SourceError
from build.overlay.flags import ROOTS, path_flags, undecided, unit_flags
from build.overlay.layout import is_header
from build.overlay.model import Inputs, Object
from build.overlay.toolchain import free_memory, run_compiler
from build.paths import built_beside, cache, locked
from build.process import Completed
from build.seals import digest_of, sha256_of
from build.sources import submodules

#: Memory one compiler needs at its peak, measured on ProcessGroupNCCL.cpp of 2.6.0: 1.8 GB.
_BYTES_PER_JOB = 2_000_000_000
#: Increase when the stored form changes, or when objects with a right key may be wrong: those of 1 may have been
#: compiled with headers from CPATH, those of 2 with damaged headers, those of 3 with undecided macros.
_CACHE_FORMAT = "4"


_REMEDY = (
    "if a header is missing, add its package to the release in build/releases.toml; for patches of your own, name a "
    "folder that has it, at the commit of the release: --include PATH; if the compiler was killed, memory ran out: "
    "2 GB per job; the whole command is in the log"
)
_SAY_MACROS = "say each macro, --define NAME=1 or NAME=0; or enter it under the release's `defines`, with `units`"
_NOT_MACROS = "only macros can be said; take what needs this unit out of the patches, or make a full build"
_ROOT = re.compile(f"({'|'.join(ROOTS)})/")
_MISSING = re.compile(rb"fatal error: ([\w./+-]+): No such file")
#: Folders of headers of submodules that units include and that the wheel lacks, by how the included path begins.
_SUBMODULES = {
    "fmt": "third_party/fmt/include",
    "gloo": "third_party/gloo",
    "uv.h": "third_party/libuv/include",
    "tensorpipe": "third_party/tensorpipe",
    "libkineto.h": "third_party/kineto/libkineto/include",
    "nlohmann": "third_party/nlohmann/include",
    "cpuinfo.h": "third_party/cpuinfo/include",
    "fbgemm": "third_party/fbgemm/include",
    "httplib.h": "third_party/cpp-httplib",
    "onnx": "third_party/onnx",
    "ideep": "third_party/ideep/include",
    "ideep.hpp": "third_party/ideep/include",
    "flatbuffers": "third_party/flatbuffers/include",
}


_T = TypeVar("_T")


class _MissingSubmoduleError(CompileError):
    """A unit includes a header of a submodule: `folder` of PyTorch's tree has it, and the official wheel has not."""

    def __init__(self, folder: str, what: str, *, cause: str, remedy: str) -> None:
        super().__init__(what, cause=cause, remedy=remedy)
        self.folder = folder


class _Entry(msgspec.Struct, frozen=True):
    """The record of a cached object: the files that it included, and the digests of those of the tree."""

    unit: str
    object_sha256: str
    includes: tuple[str, ...]
    tree_files: dict[str, str]


def jobs(most: int | None = None) -> int:
    """Return how many compilers may run at once, by `most`, cores and, where the kernel shows it, free memory."""
    return max(1, min(len(os.sched_getaffinity(0)), most or sys.maxsize, free_memory() // _BYTES_PER_JOB))


@functools.cache
def _digest_of(folder: Path) -> str:
    return digest_of(folder, folder.rglob("*"))


def _primary_key(inputs: Inputs, unit: str) -> str:
    """Digest what is known before compiling; `_cached` compares the headers of the tree with the entry."""
    parts = [_CACHE_FORMAT, unit, sha256_of(inputs.tree / unit), inputs.toolchain.identity, inputs.wheel_sha256]
    parts += unit_flags(inputs, unit)
    parts += map(_digest_of, inputs.headers)
    # Names of the changed headers: they come before those of the wheel, even if the unit included those so far.
    # By these names: before they were found so, units were compiled with the wheel's.
    parts += sorted(_ROOT.sub("", name, 1) for name in inputs.changed if is_header(name))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _relative(path: str, inputs: Inputs, overrides: Path) -> str:
    """Name an included file by the root it lies in, so that records hold no path of this machine."""
    roots = [("tree:", overrides), ("wheel:", inputs.include), ("tree:", inputs.tree)]
    real = os.path.normpath(path)
    for label, root in (*roots, *(("headers:", root) for root in inputs.headers)):
        if real.startswith(f"{root}{os.sep}"):
            return label + os.path.relpath(real, root)
    return "system:" + real


def _cached(folder: Path, inputs: Inputs) -> Object | None:
    """Return the cached object of `folder` if every file of the tree that it included is unchanged."""
    if not folder.is_dir():
        return None
    leases.take(folder)
    entry = seals.read_record(folder / "entry.json", _Entry)
    if entry is None:
        return None
    try:
        same = all(sha256_of(inputs.tree / name) == digest for name, digest in entry.tree_files.items())
        if same and sha256_of(folder / "unit.o") == entry.object_sha256:
            return Object(entry.unit, folder / "unit.o", entry.object_sha256, entry.includes, 0.0)
    except OSError:
        pass
    return None


def _require_decided(inputs: Inputs, unit: str, includes: Iterable[str] = ()) -> None:
    """Refuse a unit, or what it includes, that tests macros which decide code and that nobody has decided."""
    roots = {"tree": inputs.tree, "wheel": inputs.include}
    parts = (name.partition(":") for name in includes)
    headers = [roots[label] / path for label, _, path in parts if label in roots and is_header(path)]
    if open_macros := undecided(inputs, unit, headers or [inputs.tree / unit]):
        names, what = ", ".join(open_macros), "includes headers that test" if headers else "tests"
        remedy = "say it for each: --define NAME=1 or --define NAME=0; `torch.__config__.show()` helps to know"
        raise CompileError(f"{unit} {what} macros that the release sets under conditions: {names}", remedy=remedy)


def _require_own_flags(inputs: Inputs, unit: str) -> None:
    """Require the flags that the release compiles this unit alone with: the plan knows of the patched units only."""
    decided = [*inputs.defines, *(flag.removeprefix("-D") for flag in unit_flags(inputs, unit))]
    if lacking := inputs.owners.flags_of(unit, decided):
        only_macros = all(flag.startswith("-D") for flag in lacking.split())
        what = f"{unit} would be compiled without flags that caffe2/CMakeLists.txt gives it alone: {lacking}"
        raise CompileError(what, remedy=_SAY_MACROS if only_macros else _NOT_MACROS)


def compile_failure(inputs: Inputs, unit: str, done: Completed) -> CompileError:
    """Return the error of a unit that does not compile: one of its own for a missing header of a submodule."""
    what = f"{unit} does not compile"
    cause = done.tail or f"{inputs.toolchain.cxx} ended with status {done.returncode} and no output"
    missing = _MISSING.search(done.stderr)
    folder = _SUBMODULES.get(missing[1].decode().partition("/")[0], "") if missing else ""
    if not missing or not folder:
        return CompileError(what, cause=cause, remedy=_REMEDY)
    module, tag = "/".join(folder.split("/")[:2]), inputs.release.tag
    remedy = (
        f"{missing[1].decode()} is of the submodule {module}, which the wheel lacks. In a checkout of PyTorch: "
        f"git checkout {tag} && git submodule update --init {module}; then --include CHECKOUT/{folder}"
    )
    return _MissingSubmoduleError(folder, what, cause=cause, remedy=remedy)


def _fetched(inputs: Inputs, error: _MissingSubmoduleError) -> Path:
    """Return the headers of the submodule that a unit lacks, or raise that error with why they cannot be fetched."""
    try:
        found = submodules.headers(inputs.release, error.folder)
    except DigestMismatchError:
        raise
    except (SourceError, EnvironmentUnfitError) as why:
        cause = f"{error.cause}\n{error.folder} cannot be fetched: {why.what}" + (f": {why.cause}" if why.cause else "")
        raise CompileError(error.what, cause=cause, remedy=error.remedy) from None
    if found in inputs.headers:
        raise error
    return found


def preprocess(inputs: Inputs, unit: str, overrides: Path, *options: str) -> bytes:
    """Return what the compiler gets of a unit, but for numbers of lines.

    Args:
        overrides: the headers that the patches change, see `override_headers`.
        options: further ones of the preprocessor, such as `-P`.

    Raises:
        CompileError: the preprocessor fails, e.g. since a header is missing.
    """

    def run(given: Inputs) -> bytes:
        command: list[str | Path] = [given.toolchain.cxx, *unit_flags(given, unit), *path_flags(given, overrides)]
        done = run_compiler([*command, "-E", *options, "-D__LINE__=0", given.tree / unit], timeout=600)
        if done.returncode:
            raise compile_failure(given, unit, done)
        return done.stdout

    return with_submodules(inputs, run)


def _compile(inputs: Inputs, unit: str, overrides: Path, folder: Path) -> Object:
    started = time.monotonic()
    with built_beside(folder) as part:
        obj, dep = part / "unit.o", part / "unit.d"
        command: list[str | Path] = [inputs.toolchain.cxx, *unit_flags(inputs, unit), *path_flags(inputs, overrides)]
        done = run_compiler([*command, "-MD", "-MF", dep, "-c", inputs.tree / unit, "-o", obj], timeout=1800)
        if done.returncode:
            raise compile_failure(inputs, unit, done)
        text = dep.read_text(encoding="utf-8", errors="surrogateescape").replace("\\\n", " ")
        names = re.split(r"(?<!\\)\s+", text.partition(":")[2].strip())
        includes = tuple(sorted({_relative(name.replace("\\ ", " "), inputs, overrides) for name in names}))
        tree_files = {name[5:]: sha256_of(inputs.tree / name[5:]) for name in includes if name.startswith("tree:")}
        _require_decided(inputs, unit, includes)
        entry = _Entry(unit, sha256_of(obj), includes, tree_files)
        seals.write_record(part / "entry.json", entry)
        dep.unlink()
    return Object(unit, folder / "unit.o", entry.object_sha256, includes, time.monotonic() - started)


def with_submodules(inputs: Inputs, compile_with: Callable[[Inputs], _T]) -> _T:
    """Return what `compile_with` makes, with the submodules whose headers turn out to be missing.

    Their content follows from the release's commit, so the key of an object is right without them.
    """
    try:
        return compile_with(inputs)
    except _MissingSubmoduleError as error:
        more = replace(inputs, headers=(*inputs.headers, _fetched(inputs, error)))
    return with_submodules(more, compile_with)


def compile_one(inputs: Inputs, unit: str, overrides: Path) -> Object:
    """Return the object of one unit, from the cache where everything is the same; its reason is left open.

    Args:
        overrides: the headers that the patches change, see `override_headers`.

    Raises:
        CompileError: it does not compile, or a flag of it is not decided.
    """
    _require_decided(inputs, unit)
    _require_own_flags(inputs, unit)
    folder = (inputs.objects or cache("objects")) / _primary_key(inputs, unit)
    if ready := _cached(folder, inputs):
        return ready
    with locked(folder, f"the object of {unit}"):
        note(f"compiling {Path(unit).name}")
        made = _cached(folder, inputs)
        made = made or with_submodules(inputs, lambda given: _compile(given, unit, overrides, folder))
        leases.take(folder)
        return made


def override_headers(inputs: Inputs, folder: Path) -> None:
    """Copy the headers that the patches change into `folder`, the first on the include path."""
    for name in inputs.changed:
        if is_header(name):
            target = folder / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(inputs.tree / name, target)
