"""Compiles the engine when a wheel or an editable install is made.

It is C++20 on the stable ABI of CPython 3.10: one file for every later version. Without a compiler there is no package.
``python hatch_build.py`` compiles into the source tree, for work without an install.
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
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ModuleNotFoundError:  # run as a program
    BuildHookInterface = object

#: its place in the source tree and in the wheel
ENGINE = Path("multiworld", "_engine.abi3.so")
_SOURCE = Path("multiworld", "engine", "whole.cc")
_OPTIONS = ("-std=c++20", "-fvisibility=hidden", "-Imultiworld/engine", "-O2", "-fPIC", "-shared")
_COMPILERS = ("c++", "g++", "clang++")
_SECONDS = 300.0
#: The glibc 2 of the oldest systems that have a libstdc++ with GLIBCXX_3.4.x, by the last number: PEP 600's policies.
_GLIBC_OF = {19: 17, 22: 24, 24: 27, 28: 31, 29: 34, 30: 35, 33: 39}


def compile_into(root: Path, target: Path) -> str:
    """Compile the engine with ``CXX``, or with the first C++ compiler that is there.

    Args:
        root: of the source tree.
        target: where it goes; it is replaced in one step.

    Returns:
        Why there is none; empty if there is one.
    """
    command = shlex.split(os.environ.get("CXX", "")) or list(filter(shutil.which, _COMPILERS))[:1]
    if not command:
        return f"no compiler was found ({', '.join(_COMPILERS)})"
    with tempfile.TemporaryDirectory(prefix=".native-", dir=target.parent) as folder:
        made = Path(folder, target.name)
        line = [*command, *_OPTIONS, "-o", str(made), str(_SOURCE)]
        line += shlex.split(os.environ.get("LDLIBS", ""))  # as make has it: libraries, behind what needs them
        try:
            done = subprocess.run(line, cwd=root, capture_output=True, text=True, timeout=_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{command[0]}: {error}"
        if done.returncode:
            return f"{command[0]}: {done.stderr.strip()[-500:]}"
        made.replace(target)
    return ""


def up_to_date(root: Path) -> bool:
    """Whether the engine in the source tree is newer than all that it is made of, as make asks."""
    made, sources = root / ENGINE, (root / _SOURCE).parent
    inputs = [Path(__file__), *sources.rglob("*.cc"), *sources.rglob("*.h")]
    return made.is_file() and made.stat().st_mtime > max(each.stat().st_mtime for each in inputs)


def no_engine(why: str) -> str:
    """The error of an installation whose engine cannot be compiled."""
    return (
        f"multiworld's engine, which moves the data of all worlds, could not be compiled: {why}\n"
        "likely cause: there is no C++20 compiler here, or $CXX names another one\n"
        "what to do: install a compiler (Debian and Ubuntu: apt-get install g++), or install the wheel of multiworld"
    )


def platform_tag(data: bytes) -> str:
    """The platform on which a library runs, by the symbols that it uses; at least that of torch's own wheels."""
    if b"libc.so.6" not in data:  # another libc: it runs where it was built
        return re.sub("[-.]", "_", sysconfig.get_platform())
    runtime = max([0, *(int(found) for found in re.findall(rb"GLIBCXX_3\.4\.(\d+)", data))])
    glibc = [int(found) for found in re.findall(rb"GLIBC_2\.(\d+)", data)]
    glibc.append(next((glibc for last, glibc in _GLIBC_OF.items() if runtime <= last), 41))
    return f"manylinux_2_{max(glibc)}_{platform.machine()}"


def bill(name: str, version: str, root: Path, library: bytes) -> str:
    """The SBOM (CycloneDX): package, engine, and the commit that it was built from if its sources are a clone."""
    git = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty"]
    asked = (root / ".git").exists() and shutil.which("git")
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() if asked else ""
    package: dict[str, Any] = {
        "type": "library",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name}@{version}",
        "licenses": [{"expression": "Apache-2.0"}],
    }
    package |= {"pedigree": {"commits": [{"uid": commit}]}} if commit else {}
    digest = hashlib.sha256(library).hexdigest()
    part = {"type": "file", "name": ENGINE.as_posix(), "hashes": [{"alg": "SHA-256", "content": digest}]}
    whole = {"bomFormat": "CycloneDX", "specVersion": "1.6", "metadata": {"component": package}, "components": [part]}
    return json.dumps(whole, indent=2) + "\n"


class NativeBuildHook(BuildHookInterface):
    """Puts the engine into the wheel, or beside its sources for an editable install."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile, before the wheel is put together; see hatchling's ``BuildHookInterface``."""
        root = Path(self.root)
        # Not into the source tree: a build leaves nothing there.
        self._folder = None if version == "editable" else tempfile.mkdtemp(prefix="multiworld-build-")
        if self._folder is None and up_to_date(root):
            return  # every environment with an editable install uses the same file
        target = Path(self._folder, ENGINE.name) if self._folder else root / ENGINE
        if why := compile_into(root, target):
            self.finalize("", {}, "")
            self.app.abort(no_engine(why))
        if self._folder:
            library, sbom = target.read_bytes(), Path(self._folder, "multiworld.cdx.json")
            build_data["force_include"][str(target)] = ENGINE.as_posix()
            build_data["pure_python"] = False
            build_data["tag"] = f"cp310-abi3-{platform_tag(library)}"
            sbom.write_text(bill(self.metadata.core.name, self.metadata.version, root, library))
            build_data["sbom_files"].append(str(sbom))

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:  # noqa: ARG002
        """Remove what was compiled for the wheel."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


if __name__ == "__main__":
    here = Path(__file__).resolve().parent
    if reason := compile_into(here, here / ENGINE):
        sys.exit(no_engine(reason))
