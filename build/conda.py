"""The conda environment of a full build: its lock, one per CUDA version, and the environment made from it.

conda-lock solves, with a conda, mamba or micromamba of this machine. A lock names the digest of what it was made from
and of its own content: whether it still fits is a comparison of digests, without a solver and without network.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from build import leases, lockfile, releases
from build.console import step
from build.errors import EnvironmentUnfitError, ReleaseDataError, UsageError
from build.lockfile import State
from build.paths import REPO, cache, clear, locked
from build.process import Completed, run, uv_run
from build.seals import built, sha256_of

#: Channels, compilers, tools: all but the CUDA version.
SPECIFICATION = REPO / "environment.yml"
LOCKS = REPO / "locks"
#: What conda-lock itself needs.
TOOLS = LOCKS / "conda.txt"
#: The first CUDA version that conda-forge splits into the packages that `cuda-version` selects.
FIRST = "12.0"
PLATFORM = "linux-64"
#: What the solver takes for the machine, so that a lock does not depend on where it is made. The oldest system that the
#: official wheels run on today; the driver's version is that of the toolkit.
GLIBC, KERNEL = "2.28", "4.18"
_PROGRAMS = ("conda", "mamba", "micromamba")


@dataclass(frozen=True, slots=True)
class Lock:
    """The lock of one CUDA version."""

    cuda: str

    @property
    def path(self) -> Path:
        return LOCKS / f"cuda-{self.cuda}.conda-lock.yml"

    @property
    def virtual_packages(self) -> str:
        rows = {"__glibc": GLIBC, "__linux": KERNEL, "__unix": "0", "__cuda": self.cuda}
        packages = "".join(f'      {name}: "{version}"\n' for name, version in rows.items())
        return f"subdirs:\n  {PLATFORM}:\n    packages:\n{packages}"

    @property
    def addition(self) -> str:
        """Return the additions to `environment.yml`: conda-forge's package that selects the toolkit's version."""
        return f"dependencies:\n  - cuda-version={self.cuda}\nplatforms:\n  - {PLATFORM}\n"

    @property
    def inputs(self) -> str:
        """Digest of all that the lock is made from; comments and blank lines of `environment.yml` do not count."""
        lines = (re.sub(r"(^|\s)#.*", "", line).rstrip() for line in _specification().splitlines())
        parts = ["\n".join(line for line in lines if line), self.addition, self.virtual_packages]
        return lockfile.digest(parts)

    @property
    def state(self) -> State:
        return lockfile.state(self.path, self.inputs)


def _specification() -> str:
    try:
        return SPECIFICATION.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ReleaseDataError(f"{SPECIFICATION.name} is missing", remedy="get it back from git") from None


def locks() -> tuple[Lock, ...]:
    """Return the locks that the releases need: one per CUDA version that conda-forge can give."""
    wanted = {item.wheel.cuda for item in releases.load().values() if item.wheel.cuda}
    return tuple(Lock(cuda) for cuda in sorted(wanted, key=Version) if Version(cuda) >= Version(FIRST))


def executable(named: str = "") -> Path:
    """Return conda, mamba or micromamba: the named one, else `CONDA_EXE`, else the first on PATH.

    Raises:
        UsageError: the named program does not exist.
        EnvironmentUnfitError: this machine has none.
    """
    programs = [named] if named else [os.environ.get("CONDA_EXE", ""), os.environ.get("MAMBA_EXE", ""), *_PROGRAMS]
    if found := next(filter(None, (shutil.which(name) for name in programs if name)), None):
        return Path(found)
    if named:
        raise UsageError(f"--conda {named}: there is no such program", remedy="give the path of conda or micromamba")
    remedy = "install micromamba (one file, no installation), or name a program: --conda PATH"
    raise EnvironmentUnfitError("this machine has no conda, mamba or micromamba", remedy=remedy)


def check_locks() -> list[str]:
    """Compare all locks with `environment.yml`, without a solver; return the names of those that do not exist yet.

    Raises:
        ReleaseDataError: a lock does not fit; each is named with the reason.
    """
    states = {lock.path.name: lock.state for lock in locks()}
    missing = [name for name, state in states.items() if state is State.MISSING]
    made_from = "environment.yml, the CUDA version and the virtual packages"
    lockfile.require({name: state for name, state in states.items() if name not in missing}, made_from)
    return missing


def make(lock: Lock, conda: Path) -> None:
    """Solve the environment of one CUDA version and write its lock.

    Raises:
        EnvironmentUnfitError: the channels cannot be reached, or no solution exists; conda's message is the cause.
    """
    step(f"solving the conda environment of CUDA {lock.cuda} with {conda.name}")
    with tempfile.TemporaryDirectory(prefix="conda-lock-") as scratch:
        folder = Path(scratch)
        base, addition, virtual, made = (folder / name for name in ("environment.yml", "cuda.yml", "v.yml", "lock.yml"))
        texts = {base: _specification(), addition: lock.addition, virtual: lock.virtual_packages}
        for path, text in texts.items():
            path.write_text(text, encoding="utf-8")
        command: list[str | Path] = ["lock", "--conda", conda, "--platform", PLATFORM, "--strip-auth"]
        command += ["--file", base, "--file", addition, "--virtual-package-spec", virtual, "--lockfile", made]
        done = _conda_lock(command)
        if done.returncode or not made.is_file():
            # What the solver says, without conda-lock's own traceback behind it.
            said = done.stderr.decode("utf-8", "replace").partition("Traceback (most recent call last)")[0]
            what = f"the conda environment of CUDA {lock.cuda} cannot be solved"
            cause = "\n".join(said.strip().splitlines()[-25:]) or done.tail
            raise EnvironmentUnfitError(what, cause=cause, remedy="correct environment.yml, or check the channels")
        # conda-lock names the folder in which it found its input.
        found = made.read_text(encoding="utf-8").replace(f"{folder}/cuda.yml", "cuda-version")
        lockfile.write(lock.path, lock.inputs, found.replace(f"{folder}/", ""))


def _conda_lock(arguments: Iterable[str | Path]) -> Completed:
    # Without our path: conda-lock imports a module `build`, which is not ours.
    command = [tools() / "bin" / "conda-lock", *arguments]
    return run(command, env={"CONDA_LOCK_DISABLE_PROGRESS": "1"}, without=("PYTHONPATH",), timeout=1800)


def tools() -> Path:
    """Return an environment with conda-lock as locked, made in the cache on the first call.

    It is one of its own: conda-lock wants other versions of the tooling's packages than the tooling.
    """
    what, digest = "the environment of conda-lock", sha256_of(TOOLS)[:16]

    def fill(part: Path) -> None:
        # Relocatable: it is made under a temporary name.
        uv_run(what, "venv", "--quiet", "--relocatable", "--allow-existing", part)
        packages = ("--require-hashes", "-r", TOOLS, "--python", part / "bin" / "python")
        uv_run(what, "pip", "install", "--quiet", *packages)

    return built(cache("tools") / f"conda-lock-{digest}", what, fill)


def check(cuda: str) -> None:
    """Check that an environment for a CUDA version can be had: an active one, or a lock and a conda.

    Raises:
        EnvironmentUnfitError: it cannot; the message says what is missing.
    """
    if _active(cuda):
        return
    executable()
    lock = Lock(cuda)
    if lock.state is not State.FITS:
        cause = f"locks/{lock.path.name} {lock.state.value}, and no active environment has that compiler"
        remedy = f"run `nox -s lock`, or activate an environment with `cuda-version={cuda}` and environment.yml's"
        raise EnvironmentUnfitError(f"there is no conda environment for CUDA {cuda}", cause=cause, remedy=remedy)


def _active(cuda: str) -> Path | None:
    """Return the active conda environment if it has a compiler of that CUDA version."""
    if not (named := os.environ.get("CONDA_PREFIX", "")):
        return None
    nvcc = Path(named, "bin", "nvcc")
    said = run([nvcc, "--version"], timeout=60).stdout.decode("utf-8", "replace") if cuda and nvcc.exists() else ""
    return Path(named) if not cuda or f"release {cuda}," in said else None


def environment(cuda: str) -> Path:
    """Return the conda environment for a CUDA version: the active one if it fits, else the locked one in the cache.

    Raises:
        EnvironmentUnfitError: it does not exist and cannot be made.
    """
    if (active := _active(cuda)) is not None:
        return active
    check(cuda)
    lock = Lock(cuda)
    place = cache("toolchains") / f"conda-{cuda}-{sha256_of(lock.path)[:16]}"
    # Made under its own name: conda writes the prefix into scripts and libraries. The mark is written last.
    mark = place / ".multiworld"
    with locked(place, f"the conda environment of CUDA {cuda}"):
        if not mark.is_file():
            step(f"installing the conda environment of CUDA {lock.cuda}")
            clear(place)
            done = _conda_lock(["install", "--conda", executable(), "--prefix", place, lock.path])
            if done.returncode:
                what = f"the conda environment of CUDA {lock.cuda} cannot be installed"
                raise EnvironmentUnfitError(what, cause=done.tail, remedy="check network, proxy and disk")
            mark.touch()
        return leases.take(place)
