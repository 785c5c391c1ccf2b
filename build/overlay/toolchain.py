"""The C++ compiler and the binutils that go with it."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from build.errors import CompileError, EnvironmentUnfitError
from build.process import Completed, check_room, run

#: Variables that make a compiler find other headers, libraries or parts of itself, or write more files. They are not on
#: the compile line that keys the cache; GCC searches CPATH before `-isystem`, thus before the pinned headers.
#: No release needs them: compilers of conda and of toolset folders know their own paths.
STEERING = (
    "CPATH",
    "C_INCLUDE_PATH",
    "CPLUS_INCLUDE_PATH",
    "LIBRARY_PATH",
    "LD_RUN_PATH",
    "GCC_EXEC_PREFIX",
    "COMPILER_PATH",
    "DEPENDENCIES_OUTPUT",
    "SUNPRO_DEPENDENCIES",
)


@dataclass(frozen=True, slots=True)
class Toolchain:
    """A working C++ compiler; `identity` names it in records and in the cache, e.g. `g++ (Debian 12.2.0) 12.2.0`."""

    cxx: Path
    identity: str
    major: int


def run_compiler(command: Sequence[str | Path], *, timeout: float) -> Completed:
    """Run the compiler or, through it, the linker, so that the result depends on the command line alone."""
    return check_room(run(command, without=STEERING, timeout=timeout))


def make(command: Sequence[str | Path], what: str, *, remedy: str, timeout: float = 600) -> None:
    """Run a tool as `run_compiler` does; raise CompileError, which says `what` is wrong, if it fails."""
    done = run_compiler(command, timeout=timeout)
    if done.returncode:
        raise CompileError(what, cause=done.tail, remedy=remedy)


def free_memory() -> int:
    """Return the bytes that this process may still take: a container's limit counts where it is lower."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        free = 1024 * int(next(line for line in lines if line.startswith("MemAvailable")).split()[1])
    except (OSError, StopIteration):
        return sys.maxsize
    try:  # control groups of version 2, as containers and Slurm set them
        group = Path("/proc/self/cgroup").read_text(encoding="ascii").partition("0::")[2].splitlines()[0]
        folder = Path("/sys/fs/cgroup") / group.lstrip("/")
        limit, used, rest = ((folder / f"memory.{word}").read_text("ascii") for word in ("max", "current", "stat"))
        cached = next(int(line.split()[1]) for line in rest.splitlines() if line.startswith("inactive_file "))
        return min(free, max(0, int(limit) - int(used) + cached))
    except (OSError, ValueError, IndexError, StopIteration):  # no limit
        return free


def ask(cxx: Path, option: str) -> str:
    """Return the first line that a compiler prints, empty when it fails."""
    done = run_compiler([cxx, option], timeout=30)
    lines = done.stdout.decode("utf-8", "replace").splitlines()
    return lines[0].strip() if lines and not done.returncode else ""


def linker(cxx: Path) -> str:
    """Return the first line of the version of the linker that `cxx` starts: other linkers write other bytes."""
    return ask(cxx, "-Wl,--version")


def find(min_gcc: int) -> Toolchain:
    """Find the C++ compiler: the value of CXX, else the first usual one on PATH.

    Args:
        min_gcc: oldest major version of g++ that compiles the release's headers.

    Raises:
        EnvironmentUnfitError: no compiler was found, it does not work, or it is too old.
    """
    named = os.environ.get("CXX")
    if named and shutil.which(named) is None:
        remedy = "unset CXX, or set it to the path of a C++ compiler, e.g. CXX=/usr/bin/g++"
        raise EnvironmentUnfitError(f"CXX={named} is not a program that can be run", remedy=remedy)
    found = next(filter(None, map(shutil.which, [named] if named else ["g++", "c++", "clang++"])), None)
    cxx = Path(found) if found else None
    missing = [tool for tool in ("ar", "nm", "objcopy", "readelf", "c++filt", "ld") if shutil.which(tool) is None]
    if cxx is None or missing:
        raise EnvironmentUnfitError(
            "no C++ compiler was found" if cxx is None else f"binutils are missing: {', '.join(missing)}",
            cause=f"CXX={os.environ.get('CXX', '(unset)')}; looked on PATH for g++, c++ and clang++",
            remedy="install one, e.g. `apt-get install g++`, or set CXX to its path",
        )
    identity, dump = ask(cxx, "--version"), ask(cxx, "-dumpversion")
    major = re.match(r"\d+", dump)
    if major is None:
        cause = f"`{cxx} -dumpversion` says {dump!r}, which is not a version"
        raise EnvironmentUnfitError(f"{cxx} is not a working C++ compiler", cause=cause, remedy="set CXX to another")
    if "clang" not in identity and int(major[0]) < min_gcc:
        what = f"{cxx} is version {dump}; this release needs g++ {min_gcc} or newer"
        raise EnvironmentUnfitError(what, remedy=f"install g++-{min_gcc} or newer and set CXX to it")
    return Toolchain(cxx, identity, int(major[0]))
