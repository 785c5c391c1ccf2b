"""Compiles the native part of multiworld, pulse.c, when a wheel or an editable install is made.

Without a compiler the package is built all the same: a Python thread then answers heartbeats, which it cannot do while
another thread holds the GIL. ``python hatch_build.py`` compiles into the source tree, for work without an install.
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
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ModuleNotFoundError:  # run as a program
    BuildHookInterface = object

SOURCE = Path("multiworld", "liveness", "pulse.c")
LIBRARY = SOURCE.with_name("libpulse.so")
_SECONDS = 60.0


def _compilers() -> list[list[str]]:
    """The commands to try. A C++ compiler alone is enough: the source is valid in both languages."""
    own = [shlex.split(os.environ["CC"])] if os.environ.get("CC") else []
    found = [[name] for name in ("cc", "gcc", "clang") if shutil.which(name)]
    plus = [[name, "-x", "c++"] for name in ("c++", "g++", "clang++") if shutil.which(name)]
    return [*own, *found, *plus]


def compile_into(root: Path, target: Path) -> str:
    """Compile the library.

    Args:
        root: of the source tree.
        target: where the library goes; it is replaced in one step.

    Returns:
        Why there is none; empty if there is one.
    """
    failures = []
    for command in _compilers():
        with tempfile.TemporaryDirectory(prefix=".pulse-", dir=target.parent) as folder:
            made = Path(folder, target.name)
            line = [*command, "-O2", "-fPIC", "-shared", "-o", str(made), str(root / SOURCE)]
            try:
                done = subprocess.run(line, capture_output=True, text=True, timeout=_SECONDS, check=False)
            except (OSError, subprocess.TimeoutExpired) as error:
                failures.append(f"{command[0]}: {error}")
                continue
            if done.returncode == 0 and made.is_file():
                made.replace(target)
                return ""
            failures.append(f"{command[0]}: {done.stderr.strip()[-500:]}")
    return "; ".join(failures) or "no C or C++ compiler was found"


class PulseBuildHook(BuildHookInterface):
    """Puts the library into the wheel, or beside its source for an editable install."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, before the wheel is put together; see hatchling's ``BuildHookInterface``."""
        self._folder: str | None = None
        root = Path(self.root)
        if not sys.platform.startswith("linux"):
            return
        if version == "editable":
            target = root / LIBRARY
        else:  # not into the source tree: a build leaves nothing there
            self._folder = tempfile.mkdtemp(prefix="multiworld-build-")
            target = Path(self._folder, LIBRARY.name)
        if why := compile_into(root, target):
            self.app.display_warning(f"multiworld is built without its native responder: {why}")
            return
        if version != "editable":
            build_data["force_include"][str(target)] = LIBRARY.as_posix()
            build_data["pure_python"] = False
            # No Python in it: one library for every version of Python.
            build_data["tag"] = f"py3-none-{re.sub('[-.]', '_', sysconfig.get_platform())}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove what was compiled for the wheel."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    sys.exit(compile_into(here, here / LIBRARY) or 0)
