"""Where compilers and CUDA toolkit of a full build come from: conda, the package index, or this machine."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

from packaging.version import Version

from build import conda
from build.errors import EnvironmentUnfitError
from build.full import index_toolkit
from build.overlay import toolchain as host
from build.process import run


class Kind(str, Enum):
    """Owner of a toolchain: the value of `--toolchain`."""

    SYSTEM = "system"
    CONDA = "conda"
    INDEX = "index"


@dataclass(frozen=True, slots=True)
class Toolchain:
    """Compilers, and a CUDA toolkit where the project needs one.

    Attributes:
        identity: names the compilers in records: first lines of their `--version`.
        cuda_home: folder of the CUDA toolkit, None without.
        path: folders that come first on PATH.
        variables: what the build gets to find them.
    """

    kind: Kind
    cxx: Path
    identity: tuple[str, ...]
    cuda_home: Path | None = None
    path: tuple[Path, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


def find(kind: Kind, cuda: str, min_gcc: int, libraries: tuple[str, ...] = ()) -> Toolchain:
    """Return a toolchain that works; toolkits of `conda` and `index` are installed into the cache on the first call.

    Args:
        cuda: version of the toolkit, e.g. `12.4`; empty for none.
        min_gcc: the oldest g++ that compiles the project.
        libraries: pinned distributions with CUDA libraries that the toolkit of `index` is completed with.

    Raises:
        EnvironmentUnfitError: it is not there, is another version, or cannot be had in this way.
    """
    if kind is Kind.CONDA:
        return _conda(cuda)
    found = host.find(min_gcc)
    base = Toolchain(kind, found.cxx, (found.identity,), variables={"CXX": str(found.cxx), **_c_compiler(found.cxx)})
    if not cuda:
        return base
    home = _system_home(cuda) if kind is Kind.SYSTEM else index_toolkit.install(cuda, libraries)
    return _with_cuda(base, home, cuda)


def problems(kind: Kind, cuda: str, min_gcc: int) -> str:
    """Return why `find` would fail, as far as that can be told at once; empty if nothing is known against it."""
    try:
        if kind is Kind.CONDA:
            conda.check(cuda)
            return ""
        host.find(min_gcc)
        if kind is Kind.SYSTEM and cuda:
            _check_nvcc(_system_home(cuda) / "bin" / "nvcc", cuda)
        if kind is Kind.INDEX and cuda:
            index_toolkit.check(cuda)
    except EnvironmentUnfitError as error:
        return f"{error.what}: {error.remedy}" if error.remedy else error.what
    return ""


def _c_compiler(cxx: Path) -> dict[str, str]:
    """Return CC for a C++ compiler: the C compiler of the same name beside it, where CC is not set."""
    name = cxx.name.replace("clang++", "clang").replace("g++", "gcc")
    named = os.environ.get("CC") or next(filter(None, map(shutil.which, (str(cxx.with_name(name)), "cc"))), "")
    return {"CC": named} if named else {}


def _system_home(cuda: str) -> Path:
    """Return the toolkit's folder: of CUDA_HOME, CUDACXX, PATH, or the usual one."""
    named = [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")]
    homes = [Path(name) for name in named if name] + [Path(f"/usr/local/cuda-{cuda}")]
    for nvcc in (os.environ.get("CUDACXX"), shutil.which("nvcc")):
        homes += [_home_of(Path(nvcc))] if nvcc else []
    homes.append(Path("/usr/local/cuda"))
    for home in homes:
        if (home / "bin" / "nvcc").exists():
            return home.resolve()
    raise EnvironmentUnfitError(
        f"no CUDA toolkit was found, {cuda} is needed",
        cause=f"no bin/nvcc in {', '.join(map(str, homes))}, and none on PATH",
        remedy=_ways(cuda),
    )


def _home_of(nvcc: Path) -> Path:
    """Return the folder of a toolkit; nvcc on PATH may be a link or a script, so nvcc itself is asked."""
    done = run([nvcc, "--dryrun", "-c", "x.cu"], timeout=60)
    found = re.search(r"^#\$ TOP=(.+)$", (done.stderr + done.stdout).decode("utf-8", "replace"), re.M)
    return Path(found[1]) if found else nvcc.resolve().parent.parent


def _ways(cuda: str) -> str:
    ways = ["install it and set CUDA_HOME to its folder", "use `--toolchain conda`"]
    if Version(cuda).major >= index_toolkit.FIRST:
        ways.append("use `--toolchain index`, which needs nothing installed")
    return ", or ".join(ways)


def _check_nvcc(nvcc: Path, cuda: str) -> str:
    """Return nvcc's version line.

    Raises:
        EnvironmentUnfitError: it does not run, or its version is not `cuda`.
    """
    done = run([nvcc, "--version"], timeout=60)
    found = re.search(r"release (\d+\.\d+), (V[\d.]+)", done.stdout.decode("utf-8", "replace"))
    if found is None:
        raise EnvironmentUnfitError(f"{nvcc} does not work", cause=done.tail, remedy=_ways(cuda))
    if found[1] != cuda:
        raise EnvironmentUnfitError(
            f"the CUDA toolkit in {nvcc.parent.parent} is {found[1]}, {cuda} is needed",
            cause="the wheel requires the libraries of the version that it is compiled with",
            remedy=_ways(cuda),
        )
    return f"nvcc {found[2]}"


def _with_cuda(base: Toolchain, home: Path, cuda: str) -> Toolchain:
    nvcc = home / "bin" / "nvcc"
    identity = (*base.identity, _check_nvcc(nvcc, cuda))
    variables = {"CUDA_HOME": str(home), "CUDA_PATH": str(home), "CUDACXX": str(nvcc), "CUDAHOSTCXX": str(base.cxx)}
    return Toolchain(base.kind, base.cxx, identity, home, (home / "bin",), {**base.variables, **variables})


def _conda(cuda: str) -> Toolchain:
    """Return the toolchain in a conda environment: the compilers are conda's, by the names that it gives them."""
    prefix = conda.environment(cuda)
    binaries = prefix / "bin"
    cxx = next(iter(sorted(binaries.glob("*-linux-gnu-g++"))), binaries / "g++")
    if not cxx.exists():
        raise EnvironmentUnfitError(
            f"the conda environment {prefix} has no C++ compiler",
            cause="environment.yml lists `cxx-compiler`, which brings it",
            remedy="remove the folder, and run again",
        )
    identity = host.run_compiler([cxx, "--version"], timeout=30).stdout.decode("utf-8", "replace").partition("\n")[0]
    base = Toolchain(Kind.CONDA, cxx, (identity,), None, (binaries,), {"CXX": str(cxx), **_c_compiler(cxx)})
    if not cuda:
        return base
    made = _with_cuda(base, prefix, cuda)
    return Toolchain(
        made.kind, cxx, made.identity, prefix, (binaries,), {**made.variables, "CONDA_PREFIX": str(prefix)}
    )
