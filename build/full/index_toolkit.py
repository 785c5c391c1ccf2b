"""NVIDIA's compiler from the package index: from CUDA 13 on it is published there, whole."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import uv
from packaging.version import Version

from build.console import step
from build.errors import CompileError, EnvironmentUnfitError
from build.paths import REPO, cache
from build.process import run
from build.seals import built, sha256_of

#: The first major version with a compiler on the index; the packages for CUDA 12 have no nvcc.
FIRST = 13
#: What the locks are made from: `cuda-toolkit[EXTRAS]==VERSION.*`.
EXTRAS = ("nvcc", "cudart", "cccl")
#: The versions that have a lock: those that releases need, and the one of the documentation.
TOOLKITS = ("13.0", "13.2")
_HOME = Path("nvidia")


def lock_of(cuda: str) -> Path:
    return REPO / "locks" / f"cuda-{cuda}.txt"


def check(cuda: str) -> None:
    """Check that the index has a compiler of that version, as far as the locks show.

    Raises:
        EnvironmentUnfitError: it has none, or there is no lock for it.
    """
    if Version(cuda).major < FIRST:
        raise EnvironmentUnfitError(
            f"the package index has no nvcc of CUDA {cuda}",
            cause=f"NVIDIA publishes the whole compiler there from CUDA {FIRST} on; older packages have parts of it",
            remedy="use `--toolchain conda`, or `--toolchain system` with an installed toolkit",
        )
    if not lock_of(cuda).is_file():
        raise EnvironmentUnfitError(
            f"there is no lock for the compiler of CUDA {cuda}",
            cause=f"locks/{lock_of(cuda).name} does not exist",
            remedy="add the version to TOOLKITS in build/full/index_toolkit.py and run `nox -s lock`",
        )


def install(cuda: str, libraries: tuple[str, ...] = ()) -> Path:
    """Return a CUDA_HOME in the cache with the compiler as locked, and with `libraries`; made on the first call.

    Args:
        cuda: e.g. `13.0`.
        libraries: pinned distributions, e.g. `nvidia-cublas==13.1.0.3`; they replace those of the lock.

    Raises:
        EnvironmentUnfitError: the index has no such compiler, or cannot be reached.
        CompileError: what was installed has no nvcc where it should be.
    """
    check(cuda)
    lock = lock_of(cuda)
    digest = hashlib.sha256("\n".join([sha256_of(lock), *libraries]).encode()).hexdigest()[:16]
    top = built(
        cache("toolchains") / f"cuda-{cuda}-{digest}",
        f"the compiler of CUDA {cuda}",
        lambda part: _fill(part, cuda, lock, libraries),
    )
    return top / _HOME / f"cu{Version(cuda).major}"


def _fill(part: Path, cuda: str, lock: Path, libraries: tuple[str, ...]) -> None:
    step(f"installing the compiler of CUDA {cuda} from the package index")
    _install(part, "--require-hashes", "-r", str(lock))
    if libraries:
        _install(part, *libraries)
    home = part / _HOME / f"cu{Version(cuda).major}"
    if not (home / "bin" / "nvcc").is_file():
        raise CompileError("the packages have no nvidia/cu13/bin/nvcc", cause="another layout of NVIDIA's packages")
    complete(home)


def _install(part: Path, *what: str) -> None:
    done = run([uv.find_uv_bin(), "pip", "install", "--quiet", "--no-deps", "--target", part, *what], timeout=3600)
    if done.returncode:
        raise EnvironmentUnfitError(
            "the CUDA compiler could not be installed from the package index",
            cause=done.tail,
            remedy="check network and disk; uv's settings (UV_DEFAULT_INDEX, UV_CACHE_DIR) apply",
        )


def complete(home: Path) -> None:
    """Add what an installed toolkit has and the packages lack: `lib64`, and the names that linkers look for."""
    if not (home / "lib64").exists():
        (home / "lib64").symlink_to("lib")
    for library in sorted((home / "lib").glob("lib*.so.*")):
        plain = home / "lib" / re.sub(r"\.so\..*$", ".so", library.name)
        if not plain.exists():
            plain.symlink_to(library.name)
