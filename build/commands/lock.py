"""`lock`: resolve the environments of the tools into `locks/`, with the hash of every file."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
import uv

from build import conda as conda_environments
from build.console import note, step
from build.errors import EnvironmentUnfitError, ReleaseDataError
from build.full.index_toolkit import EXTRAS, TOOLKITS
from build.paths import REPO, atomic_write
from build.process import run, run_together

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
#: Locks that stand alone: their packages are never installed with the tools'. Source: requirements, or options of uv.
ALONE = {
    "conda": ["--group", "pyproject.toml:conda"],  # conda-lock wants other versions than the tools
    **{f"cuda-{cuda}": [f"cuda-toolkit[{','.join(EXTRAS)}]=={cuda}.*"] for cuda in TOOLKITS},
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
    conda: Annotated[str, typer.Option("--conda", help="conda, mamba or micromamba; default: the first found")] = "",
) -> None:
    """Resolve pyproject.toml's groups, the noxfile's own needs and environment.yml into `locks/`."""
    with tempfile.TemporaryDirectory(prefix="locks-") as scratch:
        folder = Path(scratch, LOCKS.name)
        if upgrade or not LOCKS.is_dir():
            folder.mkdir()
        else:
            shutil.copytree(LOCKS, folder)
        if check:
            _check(folder)
            _check_conda()
            return
        _resolve(folder)
        for name in SOURCES | ALONE:
            with atomic_write(LOCKS / f"{name}.txt") as part:
                shutil.copyfile(folder / f"{name}.txt", part)
    step(f"{len(SOURCES | ALONE)} locks written to {LOCKS.relative_to(REPO)}/")
    _make_conda(conda)


def _resolve(folder: Path) -> None:
    """Resolve all locks in `folder`; versions of locks that are in it are kept where they still fit."""
    work: list[Callable[[], object]] = [partial(_resolve_tools, folder)]
    work += [partial(_resolve_one, folder, name, []) for name in ALONE]
    run_together(work)


def _resolve_tools(folder: Path) -> None:
    """Resolve those that are installed together, each with the versions of the ones before."""
    before: list[str | Path] = []
    for name in SOURCES:
        before += ["--constraints", _resolve_one(folder, name, before)]


def _resolve_one(folder: Path, name: str, constraints: list[str | Path]) -> Path:
    """Resolve one lock in `folder`, and return its path."""
    source, target = (SOURCES | ALONE)[name], folder / f"{name}.txt"
    requirement = None if source[0].startswith("-") or source[0].endswith(".py") else source[0].encode()
    where = source if requirement is None else ["-"]
    command = [uv.find_uv_bin(), "pip", "compile", *where, *_OPTIONS, *constraints, "-o", target]
    done = run(command, cwd=REPO, stdin=requirement)
    if done.returncode:
        raise EnvironmentUnfitError(
            f"locks/{name}.txt cannot be resolved",
            cause=done.tail,
            remedy="correct the versions in pyproject.toml, or check the network and the index (UV_DEFAULT_INDEX)",
        )
    return target


def _make_conda(named: str) -> None:
    """Solve environment.yml per CUDA version; without a conda, say which locks are not made."""
    try:
        program = conda_environments.executable(named)
    except EnvironmentUnfitError as error:
        note(f"conda locks not made: {error.what}; {error.remedy}")
        return
    for item in conda_environments.locks():
        conda_environments.make(item, program)
    step(f"{len(conda_environments.locks())} conda locks written to {LOCKS.relative_to(REPO)}/")


def _check_conda() -> None:
    if missing := conda_environments.check_locks():
        note(f"no conda lock yet: {', '.join(missing)}; run `nox -s lock` where conda is")
    else:
        step(f"{len(conda_environments.locks())} conda locks fit environment.yml")


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
    stale = [name for name in SOURCES | ALONE if pins(_text(LOCKS, name)) != pins(_text(folder, name))]
    if stale:
        raise ReleaseDataError(
            "locks are out of date: " + ", ".join(f"locks/{name}.txt" for name in stale),
            cause="pyproject.toml or noxfile.py asks for other versions than the lock has",
            remedy="run `nox -s lock` and commit the result",
        )
    step(f"{len(SOURCES | ALONE)} locks fit pyproject.toml and noxfile.py")


def _text(folder: Path, name: str) -> str:
    path = folder / f"{name}.txt"
    return path.read_text(encoding="utf-8") if path.is_file() else ""
