"""Compiles the native parts of multiworld when a wheel or an editable install is made.

The engine is C++20 on the stable ABI of CPython 3.10: one file for every later version. ``pulse.c`` has no
Python in it. Without a compiler the package is built all the same: worlds then use the engine in Python, and a Python
thread answers heartbeats, which it cannot do while another thread holds the GIL. ``python hatch_build.py`` compiles
into the source tree, for work without an install.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ModuleNotFoundError:  # run as a program
    BuildHookInterface = object

_PLUS = (("c++",), ("g++",), ("clang++",))
_SECONDS = 300.0


@dataclass(frozen=True)
class Library:
    """A native part of the package.

    Attributes:
        library: its place in the source tree and in the wheel.
        sources: what it is made of, as patterns from its own folder.
        variable: names the compiler to try first.
        compilers: the commands to try then, with options.
        options: for each of them.
    """

    library: Path
    sources: tuple[str, ...]
    variable: str
    compilers: tuple[tuple[str, ...], ...]
    options: tuple[str, ...] = ()

    def found(self, root: Path) -> list[str]:
        """The source files."""
        folder = root / self.library.parent
        return [str(path) for pattern in self.sources for path in sorted(folder.glob(pattern))]


PULSE = Library(
    Path("multiworld", "liveness", "libpulse.so"),
    ("pulse.c",),
    "CC",
    # A C++ compiler alone is enough: the source is valid in both languages.
    (("cc",), ("gcc",), ("clang",), *((*one, "-x", "c++") for one in _PLUS)),
)
ENGINE = Library(
    Path("multiworld", "_engine.abi3.so"),
    ("engine/*/*.cc",),
    "CXX",
    _PLUS,
    ("-std=c++20", "-fvisibility=hidden", "-Imultiworld/engine"),
)


def _compilers(library: Library) -> list[list[str]]:
    own = [shlex.split(os.environ[library.variable])] if os.environ.get(library.variable) else []
    return [*own, *(list(one) for one in library.compilers if shutil.which(one[0]))]


def compile_into(root: Path, library: Library, target: Path) -> str:
    """Compile a library.

    Args:
        root: of the source tree.
        library: what is compiled.
        target: where it goes; it is replaced in one step.

    Returns:
        Why there is none; empty if there is one.
    """
    failures = []
    for command in _compilers(library):
        with tempfile.TemporaryDirectory(prefix=".native-", dir=target.parent) as folder:
            made = Path(folder, target.name)
            line = [*command, "-O2", "-fPIC", "-shared", *library.options, "-o", str(made), *library.found(root)]
            try:
                done = subprocess.run(line, cwd=root, capture_output=True, text=True, timeout=_SECONDS, check=False)
            except (OSError, subprocess.TimeoutExpired) as error:
                failures.append(f"{command[0]}: {error}")
                continue
            if done.returncode == 0 and made.is_file():
                made.replace(target)
                return ""
            failures.append(f"{command[0]}: {done.stderr.strip()[-500:]}")
    return "; ".join(failures) or f"no compiler was found ({', '.join(one[0] for one in library.compilers)})"


class NativeBuildHook(BuildHookInterface):
    """Puts the libraries into the wheel, or beside their sources for an editable install."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, before the wheel is put together; see hatchling's ``BuildHookInterface``."""
        self._folder: str | None = None
        root = Path(self.root)
        if not sys.platform.startswith("linux"):
            return
        # Not into the source tree: a build leaves nothing there.
        self._folder = None if version == "editable" else tempfile.mkdtemp(prefix="multiworld-build-")
        platform = re.sub("[-.]", "_", sysconfig.get_platform())
        # The tag of the second stands: the engine needs CPython, the other one any Python.
        for library, tag in ((PULSE, f"py3-none-{platform}"), (ENGINE, f"cp310-abi3-{platform}")):
            target = Path(self._folder, library.library.name) if self._folder else root / library.library
            if why := compile_into(root, library, target):
                self.app.display_warning(f"multiworld is built without {library.library.name}: {why}")
            elif self._folder:
                build_data["force_include"][str(target)] = library.library.as_posix()
                build_data["pure_python"] = False
                build_data["tag"] = tag

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove what was compiled for the wheel."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    missing = [why for library in (PULSE, ENGINE) if (why := compile_into(here, library, here / library.library))]
    sys.exit("\n".join(missing) or 0)
