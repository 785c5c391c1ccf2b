"""Where compilers and CUDA toolkit of a full build come from: conda, the package index, or this machine.

From CUDA 13 on, NVIDIA publishes its whole compiler on the package index.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from pathlib import Path

from packaging.version import Version

from build import conda
from build.console import step
from build.errors import CompileError, EnvironmentUnfitError
from build.overlay import toolchain as host
from build.paths import REPO, cache
from build.process import run, uv_run
from build.seals import built, sha256_of

#: The first major version with a compiler on the index; the packages for CUDA 12 have no nvcc.
FIRST = 13
#: What the locks are made from: `cuda-toolkit[EXTRAS]==VERSION.*`.
EXTRAS = ("nvcc", "cudart", "cccl")
#: The versions that have a lock: those that releases need, and the one of the documentation.
TOOLKITS = ("13.0", "13.2")


class Kind(str, Enum):
    """Owner of a toolchain: the value of `--toolchain`."""

    SYSTEM = "system"
    CONDA = "conda"
    INDEX = "index"


@dataclass(frozen=True, slots=True)
class Toolchain:
    """Compilers, by first lines of their `--version`, and a CUDA toolkit; what comes first on PATH, and variables."""

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
        prefix = conda.environment(cuda)
        base = _of_conda(prefix)
        return _with_cuda(base, prefix, cuda) if cuda else base
    found = host.find(min_gcc)
    base = _base(found.cxx, found.identity)
    if not cuda:
        return base
    return _with_cuda(base, _system_home(cuda) if kind is Kind.SYSTEM else install(cuda, libraries), cuda)


def check(kind: Kind, cuda: str, min_gcc: int) -> None:
    """Raise the error with which `find` would fail, as far as that can be told at once."""
    if kind is Kind.CONDA:
        conda.check(cuda)
        return
    host.find(min_gcc)
    if kind is Kind.SYSTEM and cuda:
        _check_nvcc(_system_home(cuda) / "bin" / "nvcc", cuda)
    if kind is Kind.INDEX and cuda:
        check_index(cuda)


def _base(cxx: Path, identity: str) -> Toolchain:
    """Return the host's part of a toolchain; CC is the C compiler of the same name beside CXX, where it is not set."""
    name = cxx.name.replace("clang++", "clang").replace("g++", "gcc")
    named = os.environ.get("CC") or next(filter(None, map(shutil.which, (str(cxx.with_name(name)), "cc"))), "")
    return Toolchain(cxx, (identity,), variables={"CXX": str(cxx), **({"CC": named} if named else {})})


def _with_cuda(base: Toolchain, home: Path, cuda: str) -> Toolchain:
    nvcc = home / "bin" / "nvcc"
    identity = (*base.identity, _check_nvcc(nvcc, cuda))
    variables = {"CUDA_HOME": str(home), "CUDA_PATH": str(home), "CUDACXX": str(nvcc), "CUDAHOSTCXX": str(base.cxx)}
    return Toolchain(base.cxx, identity, home, (home / "bin",), {**base.variables, **variables})


def _of_conda(prefix: Path) -> Toolchain:
    """Return the compilers in a conda environment, by the names that conda gives them."""
    binaries = prefix / "bin"
    cxx = next(iter(sorted(binaries.glob("*-linux-gnu-g++"))), binaries / "g++")
    if not cxx.exists():
        remedy = "remove the folder, and run again"
        raise EnvironmentUnfitError(f"the conda environment {prefix} has no C++ compiler", remedy=remedy)
    base = _base(cxx, host.ask(cxx, "--version"))
    return replace(base, path=(binaries,), variables={**base.variables, "CONDA_PREFIX": str(prefix)})


def _system_home(cuda: str) -> Path:
    """Return the toolkit's folder: of CUDA_HOME, CUDACXX, PATH, or the usual one."""
    named = [os.environ.get(name, "") for name in ("CUDA_HOME", "CUDA_PATH")]
    homes = [Path(name) for name in named if name] + [Path(f"/usr/local/cuda-{cuda}")]
    homes += [_home_of(Path(nvcc)) for nvcc in (os.environ.get("CUDACXX"), shutil.which("nvcc")) if nvcc]
    homes.append(Path("/usr/local/cuda"))
    for home in homes:
        if (home / "bin" / "nvcc").exists():
            return home.resolve()
    cause = f"no bin/nvcc in {', '.join(map(str, homes))}, and none on PATH"
    raise EnvironmentUnfitError(f"no CUDA toolkit was found, {cuda} is needed", cause=cause, remedy=_ways(cuda))


def _home_of(nvcc: Path) -> Path:
    """Return the folder of a toolkit; nvcc on PATH may be a link or a script, so nvcc itself is asked."""
    done = run([nvcc, "--dryrun", "-c", "x.cu"], timeout=60)
    found = re.search(r"^#\$ TOP=(.+)$", (done.stderr + done.stdout).decode("utf-8", "replace"), re.M)
    return Path(found[1]) if found else nvcc.resolve().parent.parent


def _ways(cuda: str) -> str:
    ways = ["install it and set CUDA_HOME to its folder", "use `--toolchain conda`"]
    if Version(cuda).major >= FIRST:
        ways.append("use `--toolchain index`, which needs nothing installed")
    return ", or ".join(ways)


def _check_nvcc(nvcc: Path, cuda: str) -> str:
    """Return nvcc's version line; raise EnvironmentUnfitError if it does not run, or its version is not `cuda`."""
    done = run([nvcc, "--version"], timeout=60)
    found = re.search(r"release (\d+\.\d+), (V[\d.]+)", done.stdout.decode("utf-8", "replace"))
    if found is None:
        raise EnvironmentUnfitError(f"{nvcc} does not work", cause=done.tail, remedy=_ways(cuda))
    if found[1] != cuda:
        what = f"the CUDA toolkit in {nvcc.parent.parent} is {found[1]}, {cuda} is needed"
        raise EnvironmentUnfitError(what, remedy=_ways(cuda))
    return f"nvcc {found[2]}"


def _lock_of(cuda: str) -> Path:
    return REPO / "locks" / f"cuda-{cuda}.txt"


def check_index(cuda: str) -> None:
    """Check that the index has a compiler of that version, as far as the locks show.

    Raises:
        EnvironmentUnfitError: it has none, or there is no lock for it.
    """
    if Version(cuda).major < FIRST:
        what = f"the package index has no nvcc of CUDA {cuda}, but from CUDA {FIRST} on"
        remedy = "use `--toolchain conda`, or `--toolchain system` with an installed toolkit"
        raise EnvironmentUnfitError(what, remedy=remedy)
    if not _lock_of(cuda).is_file():
        remedy = "add the version to TOOLKITS in build/full/toolchains.py and run `nox -s lock`"
        raise EnvironmentUnfitError(f"there is no lock for the compiler of CUDA {cuda}", remedy=remedy)


def install(cuda: str, libraries: tuple[str, ...]) -> Path:
    """Return a CUDA_HOME in the cache with the index's compiler as locked, and with `libraries` in place of the lock's.

    Raises:
        EnvironmentUnfitError: the index has no such compiler, or cannot be reached.
        CompileError: what was installed has no nvcc where it should be.
    """
    check_index(cuda)
    digest = hashlib.sha256("\n".join([sha256_of(_lock_of(cuda)), *libraries]).encode()).hexdigest()[:16]
    place, what = Path("nvidia", f"cu{Version(cuda).major}"), f"the compiler of CUDA {cuda}"

    def fill(part: Path) -> None:
        step(f"installing {what} from the package index")
        for packages in (("--require-hashes", "-r", _lock_of(cuda)), libraries):
            if packages:
                uv_run(what, "pip", "install", "--quiet", "--no-deps", "--target", part, *packages)
        if not (part / place / "bin" / "nvcc").is_file():
            raise CompileError(f"the packages have no {place}/bin/nvcc", cause="another layout of NVIDIA's packages")
        complete(part / place)

    return built(cache("toolchains") / f"cuda-{cuda}-{digest}", what, fill) / place


def complete(home: Path) -> None:
    """Add what an installed toolkit has and the packages lack: `lib64`, and the names that linkers look for."""
    if not (home / "lib64").exists():
        (home / "lib64").symlink_to("lib")
    for library in sorted((home / "lib").glob("lib*.so.*")):
        plain = home / "lib" / re.sub(r"\.so\..*$", ".so", library.name)
        if not plain.exists():
            plain.symlink_to(library.name)
