"""Check that this machine can do the work, before any of it starts, and list all problems at once."""

from __future__ import annotations

import contextlib
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from textwrap import indent

import uv

from build.console import counted
from build.errors import EnvironmentUnfitError
from build.official.headers import cached_package
from build.official.index import index_problem
from build.official.wheel import cached_wheel, pinned_digest
from build.overlay import toolchain
from build.paths import cache
from build.process import run
from build.releases import Release
from build.sources import TreePurpose
from build.sources.acquire import cached_folder

_MIB = 1 << 20
#: Bytes, measured on 2.6.0 and rounded up: the official wheel, its unpacked members, the source with its repository and
#: the patched checkout, the results.
DISK = {"wheel": 900 * _MIB, "unpacked": 1800 * _MIB, "source": 400 * _MIB, "results": 900 * _MIB}
#: The compiler's assembly and git's indexes, for a short time.
DISK_TEMPORARY = 300 * _MIB
_PROBE_TIMEOUT = 10


def other_platform() -> Iterator[str]:
    machine = platform.machine()
    if sys.platform != "linux" or machine not in ("x86_64", "AMD64"):
        yield f"this is {sys.platform} on {machine}: official CUDA wheels are patched for Linux on x86_64 only"


def lacking(test: Callable[[], object]) -> Iterator[str]:
    """Yield what a test of this machine finds missing, with the remedy and the cause."""
    try:
        test()
    except EnvironmentUnfitError as error:
        yield f"{error.what}: {error.remedy}\n{indent(error.cause, '  ')}".rstrip()


#: Succeeds in a Python that can run torch, which imports these modules.
_USABLE = "import bz2, ctypes, lzma, ssl, venv, zlib"
#: Prints the folder of C headers of a Python.
_INCLUDE = "import sysconfig; print(sysconfig.get_paths()['include'])"


def interpreter(python: str) -> Path:
    """Return a working interpreter of CPython version `python` (e.g. `3.12`) on this machine, as uv finds it.

    Raises:
        EnvironmentUnfitError: this machine has none, or it does not work; the message says what to install.
    """
    if python == ".".join(platform.python_version_tuple()[:2]):
        return Path(sys.executable)
    found = run([uv.find_uv_bin(), "python", "find", "--no-python-downloads", "--no-project", f"cpython@{python}"])
    path = Path(found.stdout.decode().strip())
    tried = found if found.returncode else run([path, "-I", "-c", _USABLE], timeout=60)
    if tried.returncode:
        what = f"this machine has no working Python {python} to import the wheel with"
        remedy = f"install it (`apt-get install python{python}-venv` or `uv python install {python}`)"
        raise EnvironmentUnfitError(what, cause=tried.tail, remedy=remedy)
    return path


def headers(python: str, named: Iterable[Path] = ()) -> Path:
    """Return the folder with `Python.h` of a Python version, e.g. `3.12`, for units of libtorch_python.

    Args:
        named: folders of the user, which come first.

    Raises:
        EnvironmentUnfitError: no such folder was found.
    """
    folders = [path for path in named if path.name == f"python{python}"]
    with contextlib.suppress(EnvironmentUnfitError):
        said = run([interpreter(python), "-I", "-c", _INCLUDE], timeout=30).stdout.decode().strip()
        folders.append(Path(said))
    for folder in folders:
        if (folder / "Python.h").is_file():
            return folder
    where = f"{folders[-1]} has none" if folders else f"this machine has no Python {python}"
    install = f"install them, e.g. `apt-get install python{python}-dev` or `uv python install {python}`"
    raise EnvironmentUnfitError(
        f"the headers of Python {python} are missing",
        cause=f"the patch changes units of libtorch_python, which include Python.h; {where}",
        remedy=f"{install}; or name the folder: --include …/include/python{python}",
    )


def _existing(folder: Path) -> Path:
    return next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())


def _room(folder: Path, needed: int) -> Iterator[str]:
    free = shutil.disk_usage(_existing(folder)).free
    if free < needed:
        yield f"{folder} has {free // _MIB} MiB free, {needed // _MIB} MiB are needed"


def _disk(release: Release, python: str, dist: Path, *, local: bool) -> Iterator[str]:
    """Sum up, per file system, the sizes of what is not cached yet."""
    fetched = 0 if cached_wheel(release, python) else DISK["wheel"] + DISK["unpacked"]
    if local or cached_folder(release, TreePurpose.OVERLAY) is None:
        fetched += DISK["source"]
    if _existing(dist).stat().st_dev == cache().stat().st_dev:
        yield from _room(dist, fetched + DISK["results"])
        return
    yield from _room(cache(), fetched)
    yield from _room(dist, DISK["results"])


def _check_cache() -> None:
    try:
        cache()
    except OSError as error:
        what = f"the cache cannot have a folder {error.filename}: {error.strerror}"
        remedy = "make it possible to write there, or set MULTIWORLD_CACHE to a folder with 4 GB free"
        raise EnvironmentUnfitError(what, remedy=remedy) from None


def _network(release: Release, python: str) -> Iterator[str]:
    """Check that the index answers, only if something has to be fetched from it."""
    missing = [] if cached_wheel(release, python) else [f"torch {release.wheel.version}"]
    missing += [package.name for package in release.header_packages if cached_package(package) is None]
    if missing and python in release.wheel.sha256 and (problem := index_problem(_PROBE_TIMEOUT)):
        yield f"{problem}, and {', '.join(missing)} must be fetched"


def check(release: Release, python: str, dist: Path, *, source: Path | None = None, imported: bool = True) -> None:
    """Check that this machine can build `release` into `dist`.

    Args:
        python: CPython version of the patched wheel, e.g. `3.11`.
        source: the value of `--source`.
        imported: whether the wheel is imported here, which needs that Python.

    Raises:
        EnvironmentUnfitError: it cannot; every problem is listed.
    """
    _check_cache()
    problems = [*other_platform(), *lacking(partial(pinned_digest, release, python))]
    if imported and python in release.wheel.sha256:
        problems += lacking(partial(interpreter, python))
    problems += [] if shutil.which("git") else ["git is not on PATH: install it"]
    problems += lacking(partial(toolchain.find, release.min_gcc))
    problems += _disk(release, python, dist, local=source is not None)
    # git and the compiler each report a full one in their own way.
    temporary = _room(Path(tempfile.gettempdir()), DISK_TEMPORARY)
    problems += [f"{problem}, or set TMPDIR to another folder" for problem in temporary]
    problems += _network(release, python)
    if source is not None and not source.exists() and "@" not in str(source):
        problems.append(f"--source {source}: no such file or folder")
    if problems:
        what = f"this machine cannot build PyTorch {release.version}: {counted(len(problems), 'problem')}"
        raise EnvironmentUnfitError(what, cause="\n".join(problems), remedy="fix these and run again")
