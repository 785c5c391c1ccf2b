"""Fresh environments with torch in one of its forms; uv makes them in seconds, with hard links to its cache."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from threading import Lock

import uv
from filelock import FileLock, Timeout
from packaging.utils import parse_wheel_filename
from packaging.version import Version

from build.console import step
from build.paths import cache, locked
from build.preflight import interpreter
from build.process import run, uv_run

#: In each folder, held while it is in use.
_LOCK = ".lock"
#: Environments are made at once, but for these two steps.
_naming, _installing = Lock(), Lock()


class Form(Enum):
    """The way in which torch is installed."""

    STOCK = "stock"
    PATCHED = "patched"
    OVERLAY = "overlay"


def _uv(*arguments: str | Path) -> None:
    uv_run("the environment to run the wheels in", *arguments)


def create(folder: Path, python: Path | str) -> None:
    """Make an empty environment of an interpreter, or of a version that uv finds or fetches, without pip."""
    _uv("venv", "--quiet", "--python", python, folder)


def install(python: Path, *requirements: str | Path) -> None:
    """Install from the index, in one environment after the other: at once, each would download what all need."""
    with _installing:
        _uv("pip", "install", "--quiet", "--python", python, *requirements)


def install_into(folder: Path, python: Path, *requirements: str) -> None:
    """Install from the index into a folder that is no environment, for `python`."""
    with _installing:
        _uv("pip", "install", "--quiet", "--python", python, "--compile-bytecode", "--target", folder, *requirements)


def install_built(python: Path, wheels: list[Path]) -> None:
    """Install wheels alone, by way of a cache of their own that is removed: uv's would keep each of them for ever.

    That cache is on the environment's file system, so that the files are linked and not copied.
    """
    with tempfile.TemporaryDirectory(prefix="uv-", dir=python.parents[2]) as own:
        _uv("pip", "install", "--quiet", "--python", python, "--no-deps", "--cache-dir", own, *wheels)


def installed(python: Path) -> tuple[str, ...]:
    done = run([uv.find_uv_bin(), "pip", "freeze", "--quiet", "--python", python], timeout=60)
    return tuple(sorted(done.stdout.decode().split("\n")[:-1]))


@contextlib.contextmanager
def _folder(form: Form) -> Iterator[Path]:
    top = cache("environments")
    with _naming, locked(top / "environments", "the environments for tests"):
        for path in top.iterdir():  # of killed runs, some gigabytes each: a live run holds a lock on its folder
            if path.is_dir() and not path.is_symlink():
                with contextlib.suppress(Timeout), FileLock(path / _LOCK, timeout=0):
                    shutil.rmtree(path, ignore_errors=True)
        folder = Path(tempfile.mkdtemp(prefix=f"{form.value}-", dir=top))
        # One thread may enter this and another leave it.
        lock = FileLock(folder / _LOCK, thread_local=False)
        lock.acquire()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        lock.release()


@contextlib.contextmanager
def environment(form: Form, python: str, wheels: list[Path]) -> Iterator[Path]:
    """Make an environment with `wheels`, yield its interpreter, and remove it; dependencies come from the index.

    Of the wheels that were built here, nothing stays in uv's cache.

    Raises:
        EnvironmentUnfitError: this machine has no CPython `python` (e.g. `3.11`), or an installation failed.
    """
    with _folder(form) as folder:
        step(f"environment {form.value}: {', '.join(path.name for path in wheels)}")
        create(folder / "venv", interpreter(python))
        made = folder / "venv" / "bin" / "python"
        # The official wheel may stay in uv's cache: it is the same file each time.
        if built := [path for path in wheels if not path.is_relative_to(cache("wheels"))]:
            install_built(made, built)
        # A torch that was built for numpy 1 warns on import of 2.
        parsed = (parse_wheel_filename(path.name) for path in wheels)
        torch = next((version for name, version, _, _ in parsed if name == "torch"), None)
        install(made, *wheels, *([] if torch is None else ["numpy<2" if torch < Version("2.3") else "numpy"]))
        yield made
