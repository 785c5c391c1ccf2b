"""Inputs and results of an overlay build, as frozen records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from build.overlay.owners import Owners
from build.overlay.toolchain import Toolchain
from build.releases import Release

#: The wheel's libraries of host code.
LIBRARIES = ("libtorch_cuda.so", "libtorch_cpu.so", "libc10_cuda.so", "libc10.so", "libtorch_python.so")
#: The one of them that is compiled once per Python version.
PYTHON = "libtorch_python.so"


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything an overlay is made from.

    Attributes:
        tree: the patched source tree.
        changed: paths that the patches change, relative to `tree`.
        wheel: folder of the unpacked official wheel, with `torch/include` and `torch/lib`.
        python: CPython version of that wheel.
        headers: include folders beyond wheel and tree, in order.
        units: the units to compile, with the reason for each.
        owners: the library of each unit.
        originals: the changed files as the release has them.
        safe_headers: changed headers that a series' manifest declares safe for an overlay, with the reason.
        defines: further macros, `NAME` or `NAME=VALUE`; `NAME=0` says that the wheel was built without it.
        extensions_rebuilt: whether all extensions that include changed headers are said to be compiled anew.
        objects: folder that keeps compiled objects, default the cache's; an empty one makes every unit compile.
        stock: the source tree without the patches; None where nobody asks what they change.
        jobs: the most compilers at once; None for as many as cores and free memory allow, which it never exceeds.
    """

    release: Release
    tree: Path
    changed: tuple[str, ...]
    wheel: Path
    python: str
    wheel_sha256: str
    headers: tuple[Path, ...]
    toolchain: Toolchain
    units: Mapping[str, str]
    owners: Owners
    originals: Mapping[str, str]
    safe_headers: Mapping[str, str]
    defines: tuple[str, ...] = ()
    extensions_rebuilt: bool = False
    objects: Path | None = None
    jobs: int | None = None
    stock: Path | None = None

    @property
    def lib(self) -> Path:
        return self.wheel / "torch" / "lib"

    @property
    def include(self) -> Path:
        return self.wheel / "torch" / "include"

    @property
    def per_python(self) -> bool:
        """Return whether units of libtorch_python are wanted: then the overlay is for one Python version."""
        return any(self.owners.of(unit) == PYTHON for unit in self.units)

    @property
    def replaceable(self) -> tuple[str, ...]:
        """The wheel's libraries that units of the overlay may be from."""
        return tuple(name for name in LIBRARIES if name != PYTHON or self.per_python)


@dataclass(frozen=True, slots=True)
class Object:
    """One compiled translation unit.

    `includes` are relative to `tree:`, `wheel:` or `headers:`; `seconds` is 0 for one from the cache; `why` it is in
    the overlay is empty until that is known.
    """

    unit: str
    path: Path
    sha256: str
    includes: tuple[str, ...]
    seconds: float
    why: str = ""


@dataclass(frozen=True, slots=True)
class Check:
    """One requirement on an overlay, and what was found."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True, slots=True)
class Overlay:
    """A built overlay.

    Attributes:
        path: the shared library.
        soname: its file name and DT_SONAME.
        made_for: GNU build ids of the libtorch_cuda.so it is for, by Python version: the official wheels of one release
            are compiled from one source with one toolchain, once per Python version.
        python: the only Python version that it is for, e.g. `3.12`; empty when it is for all.
        objects: the units in it.
        replaced: exported stock symbols that it defines, mangled, sorted.
        flags: the compile line without machine-specific paths.
    """

    path: Path
    soname: str
    sha256: str
    build_id: str
    made_for: dict[str, str]
    objects: tuple[Object, ...]
    replaced: tuple[str, ...]
    flags: tuple[str, ...]
    checks: tuple[Check, ...]
    python: str = ""
