"""The C++ compiler and the binutils beside it."""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path

from build.errors import EnvironmentUnfitError
from build.process import run


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A working C++ compiler.

    Attributes:
        cxx: the compiler.
        identity: what names it in a build record and in the object cache, e.g. `g++ (Debian 12.2.0) 12.2.0`.
        major: its major version.
        is_clang: whether it is clang.
    """

    cxx: Path
    identity: str
    major: int
    is_clang: bool


def _candidate() -> Path | None:
    """Return the compiler the user names with CXX, else the first usual one on PATH."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "c++", "clang++"]
    found = (shutil.which(name) for name in names)
    return next((Path(path) for path in found if path), None)


def find(min_gcc: int) -> Toolchain:
    """Find the C++ compiler.

    Args:
        min_gcc: oldest major version of g++ that compiles the release's headers.

    Raises:
        EnvironmentUnfitError: none found, or too old.
    """
    cxx = _candidate()
    missing = [tool for tool in ("nm", "c++filt", "ld") if shutil.which(tool) is None]
    if cxx is None or missing:
        raise EnvironmentUnfitError(
            "no C++ compiler was found" if cxx is None else f"binutils are missing: {', '.join(missing)}",
            cause=f"CXX={os.environ.get('CXX', '(unset)')}; looked on PATH for g++, c++ and clang++",
            remedy="install one, e.g. `apt-get install g++`, or set CXX to its path",
        )
    identity = run([cxx, "--version"], timeout=30).stdout.decode("utf-8", "replace").splitlines()[0]
    is_clang = "clang" in identity
    dump = run([cxx, "-dumpversion"], timeout=30).stdout.decode().strip()
    major = int(re.match(r"\d+", dump).group() if re.match(r"\d+", dump) else 0)  # type: ignore[union-attr]
    if not is_clang and major < min_gcc:
        raise EnvironmentUnfitError(
            f"{cxx} is version {dump}; this release needs g++ {min_gcc} or newer",
            cause="the release's headers use C++ that older compilers do not have",
            remedy=f"install g++-{min_gcc} or newer and set CXX to it",
        )
    return Toolchain(cxx, identity, major, is_clang)
