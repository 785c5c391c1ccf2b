"""Compiles the native parts of multiworld when a wheel or an editable install is made.

The engine is C++20 on the stable ABI of CPython 3.10: one file for every later version. ``pulse.c`` has no
Python in it. Where it cannot be compiled, a Python thread answers heartbeats, which it cannot do while another thread
holds the GIL. Without the engine nothing is built. ``python hatch_build.py`` compiles into the source tree, for work
without an install.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ModuleNotFoundError:  # run as a program
    BuildHookInterface = object

_PLUS = (("c++",), ("g++",), ("clang++",))
_SECONDS = 300.0
#: The glibc 2 of the oldest systems that have a libstdc++ with GLIBCXX_3.4.x, by the last number: PEP 600's policies.
_GLIBC_OF = {19: 17, 22: 24, 24: 27, 28: 31, 29: 34, 30: 35, 33: 39}


class Library(NamedTuple):
    """A native part of the package: no dataclass, which needs the module's name, and hatchling gives it none.

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
    ("engine/whole.cc",),
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
            line += shlex.split(os.environ.get("LDLIBS", ""))  # as make has it: libraries, behind what needs them
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


def no_engine(why: str) -> str:
    """The error of an installation whose engine cannot be compiled."""
    return (
        f"multiworld's engine, which moves the data of all worlds, could not be compiled: {why}\n"
        "likely cause: there is no C++20 compiler here, or $CXX names another one\n"
        "what to do: install a compiler (Debian and Ubuntu: apt-get install g++), or install the wheel of multiworld"
    )


def platform_tag(data: bytes) -> str:
    """The platform on which libraries run, by the symbols that they use; at least that of torch's own wheels."""
    if b"libc.so.6" not in data:  # another libc: they run where they were built
        return re.sub("[-.]", "_", sysconfig.get_platform())
    runtime = max([0, *(int(found) for found in re.findall(rb"GLIBCXX_3\.4\.(\d+)", data))])
    glibc = [int(found) for found in re.findall(rb"GLIBC_2\.(\d+)", data)]
    glibc.append(next((glibc for last, glibc in _GLIBC_OF.items() if runtime <= last), 41))
    return f"manylinux_2_{max(glibc)}_{platform.machine()}"


def bill(name: str, version: str, root: Path, libraries: dict[str, bytes]) -> str:
    """The SBOM (CycloneDX): package, libraries, and the commit that it was built from if its sources are a clone."""
    git = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    asked = (root / ".git").exists() and shutil.which("git")
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() if asked else ""
    package: dict[str, Any] = {
        "type": "library",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name}@{version}",
    }
    package |= {"licenses": [{"expression": "Apache-2.0"}]}
    package |= {"pedigree": {"commits": [{"uid": commit}]}} if commit else {}
    digests = {place: hashlib.sha256(data).hexdigest() for place, data in libraries.items()}
    parts = [
        {"type": "file", "name": place, "hashes": [{"alg": "SHA-256", "content": digest}]}
        for place, digest in digests.items()
    ]
    whole = {"bomFormat": "CycloneDX", "specVersion": "1.6", "metadata": {"component": package}, "components": parts}
    return json.dumps(whole, indent=2) + "\n"


class NativeBuildHook(BuildHookInterface):
    """Puts the libraries into the wheel, or beside their sources for an editable install."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, before the wheel is put together; see hatchling's ``BuildHookInterface``."""
        self._folder: str | None = None
        root = Path(self.root)
        # Not into the source tree: a build leaves nothing there.
        self._folder = None if version == "editable" else tempfile.mkdtemp(prefix="multiworld-build-")
        made: dict[str, bytes] = {}
        # The tag of the second stands: the engine needs CPython, the other one any Python.
        for library, tag in ((PULSE, "py3-none"), (ENGINE, "cp310-abi3")) if sys.platform.startswith("linux") else ():
            target = Path(self._folder, library.library.name) if self._folder else root / library.library
            why = compile_into(root, library, target)
            if why and library is ENGINE:
                self.finalize("", {}, "")
                self.app.abort(no_engine(why))
            elif why:
                self.app.display_warning(f"multiworld is built without {library.library.name}: {why}")
            elif self._folder:
                made[library.library.as_posix()] = target.read_bytes()
                build_data["force_include"][str(target)] = library.library.as_posix()
                build_data["pure_python"] = False
                build_data["tag"] = f"{tag}-{platform_tag(b''.join(made.values()))}"
        if self._folder:
            sbom = Path(self._folder, "multiworld.cdx.json")
            sbom.write_text(bill(self.metadata.core.name, self.metadata.version, root, made))
            build_data["sbom_files"].append(str(sbom))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove what was compiled for the wheel."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    missing = [why for library in (PULSE, ENGINE) if (why := compile_into(here, library, here / library.library))]
    sys.exit("\n".join(missing) or 0)
