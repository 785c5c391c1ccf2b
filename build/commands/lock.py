"""`lock`: resolve the environments of the tools into `locks/`, with the hash of every file."""

from __future__ import annotations

import re
import shutil
import tempfile
from pathlib import Path
from typing import Annotated

import typer
import uv

from build.console import note, step
from build.errors import EnvironmentUnfitError, ReleaseDataError
from build.paths import REPO, atomic_write
from build.process import run

LOCKS = REPO / "locks"
#: Sources of the locks, in this order: a later lock uses the versions of the earlier ones.
SOURCES = {
    "tooling": ["--group", "pyproject.toml:tooling"],
    "test": ["--group", "pyproject.toml:test"],
    "sign": ["--group", "pyproject.toml:sign"],
    "lint": ["--group", "pyproject.toml:lint"],
    "nox": ["noxfile.py"],
    "gpu": ["--group", "pyproject.toml:gpu"],
}
#: The oldest supported Python; the locks are for it and for later ones.
PYTHON = "3.10"
_OPTIONS = ("--quiet", "--universal", "--python-version", PYTHON, "--no-python-downloads", "--generate-hashes",
            "--no-annotate", "--custom-compile-command", "nox -s lock")  # fmt: skip
_OFFLINE = re.compile(r"error sending request|dns error|[Cc]ould not connect|timed out|Failed to fetch")


def lock(
    check: Annotated[bool, typer.Option("--check", help="change nothing; fail when a lock is out of date")] = False,
    upgrade: Annotated[
        bool, typer.Option("--upgrade", help="take the newest versions, not those of the locks")
    ] = False,
) -> None:
    """Resolve the dependency groups of pyproject.toml and the noxfile's own into `locks/`."""
    with tempfile.TemporaryDirectory(prefix="locks-") as scratch:
        folder = Path(scratch, LOCKS.name)
        if upgrade or not LOCKS.is_dir():
            folder.mkdir()
        else:
            shutil.copytree(LOCKS, folder)
        if check:
            _check(folder)
            return
        _resolve(folder)
        for name in SOURCES:
            with atomic_write(LOCKS / f"{name}.txt") as part:
                shutil.copyfile(folder / f"{name}.txt", part)
    step(f"{len(SOURCES)} locks written to {LOCKS.relative_to(REPO)}/")


def _resolve(folder: Path) -> None:
    """Resolve all locks in `folder`; versions of locks that are in it are kept where they still fit."""
    before: list[str | Path] = []
    for name, source in SOURCES.items():
        target = folder / f"{name}.txt"
        done = run([uv.find_uv_bin(), "pip", "compile", *source, *_OPTIONS, *before, "-o", target], cwd=REPO)
        if done.returncode:
            raise EnvironmentUnfitError(
                f"locks/{name}.txt cannot be resolved",
                cause=done.tail,
                remedy="correct the versions in pyproject.toml, or check the network and the index (UV_DEFAULT_INDEX)",
            )
        before += ["--constraints", target]


def pins(text: str) -> list[str]:
    """Return the pinned requirements of a lock with their markers, without hashes."""
    return [line.removesuffix(" \\") for line in text.splitlines() if line[:1].isalnum()]


def _check(folder: Path) -> None:
    """Resolve the copy of the locks in `folder` again, and raise ReleaseDataError if one has changed."""
    try:
        _resolve(folder)
    except EnvironmentUnfitError as error:
        if not _OFFLINE.search(error.cause):
            raise
        note(f"locks not checked, since the package index cannot be reached: {error.cause.splitlines()[-1].strip()}")
        return
    stale = [name for name in SOURCES if pins(_text(LOCKS, name)) != pins(_text(folder, name))]
    if stale:
        raise ReleaseDataError(
            "locks are out of date: " + ", ".join(f"locks/{name}.txt" for name in stale),
            cause="pyproject.toml or noxfile.py asks for other versions than the lock has",
            remedy="run `nox -s lock` and commit the result",
        )
    step(f"{len(SOURCES)} locks fit pyproject.toml and noxfile.py")


def _text(folder: Path, name: str) -> str:
    path = folder / f"{name}.txt"
    return path.read_text(encoding="utf-8") if path.is_file() else ""
