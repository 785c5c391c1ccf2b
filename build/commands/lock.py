"""`lock`: resolve the environments of the tools into `locks/`, with the hash of every file."""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from build import conda as conda_environments
from build import lockfile
from build.console import note, step
from build.errors import EnvironmentUnfitError, ReleaseDataError
from build.full.toolchains import EXTRAS, TOOLKITS
from build.paths import REPO
from build.process import run_together, uv_run

LOCKS = REPO / "locks"
#: Sources of the locks, in this order: a later lock uses the versions of the earlier ones.
_NAMES = ("tooling", "test", "fleet", "sign", "types", "lint", "nox", "gpu")
SOURCES = {name: ["noxfile.py"] if name == "nox" else ["--group", f"pyproject.toml:{name}"] for name in _NAMES}
#: Locks that stand alone: their packages are never installed with the tools'. Source: requirements, or options of uv.
ALONE = {
    "conda": ["--group", "pyproject.toml:conda"],  # conda-lock wants other versions than the tools
    "docs": ["--group", "pyproject.toml:docs"],
    **{f"cuda-{cuda}": [f"cuda-toolkit[{','.join(EXTRAS)}]=={cuda}.*"] for cuda in TOOLKITS},
}
#: The oldest supported Python; the locks are for it and for later ones.
PYTHON = "3.10"
# pip takes a requirement with an extra for unpinned, if extras are stripped.
_SHAPE = ("--generate-hashes", "--no-annotate", "--no-strip-extras", "--custom-compile-command", "nox -s lock")
_OPTIONS = ("--quiet", "--universal", "--python-version", PYTHON, "--no-python-downloads", *_SHAPE)
_SCRIPT = re.compile(r"^# /// script$\n(.*?)^# ///$", re.MULTILINE | re.DOTALL)


def lock(
    check: Annotated[bool, typer.Option("--check", help="change nothing; fail when a lock is out of date")] = False,
    upgrade: Annotated[bool, typer.Option("--upgrade", help="take the newest versions")] = False,
    conda: Annotated[str, typer.Option("--conda", help="conda, mamba or micromamba; default: the first found")] = "",
) -> None:
    """Resolve pyproject.toml's groups, the noxfile's own needs and environment.yml into `locks/`."""
    every = SOURCES | ALONE
    if check:
        states = {f"{name}.txt": lockfile.state(LOCKS / f"{name}.txt", _inputs(name, LOCKS)) for name in every}
        lockfile.require(states, "pyproject.toml, noxfile.py, and the locks before them")
        step(f"{len(states)} locks fit pyproject.toml and noxfile.py")
        _check_conda()
        return
    with tempfile.TemporaryDirectory(prefix="locks-") as scratch:
        folder = Path(scratch, LOCKS.name)
        if upgrade or not LOCKS.is_dir():
            folder.mkdir()
        else:
            shutil.copytree(LOCKS, folder)
        # Versions of locks that are in the folder are kept where they still fit.
        work: list[Callable[[], object]] = [partial(_resolve_tools, folder)]
        work += [partial(_resolve_one, folder, name, []) for name in ALONE]
        run_together(work)
        for name in every:
            lockfile.write(LOCKS / f"{name}.txt", _inputs(name, folder), _text(folder / f"{name}.txt"))
    step(f"{len(every)} locks written to {LOCKS.relative_to(REPO)}/")
    _make_conda(conda)


def _resolve_tools(folder: Path) -> None:
    """Resolve those that are installed together, each with the versions of the ones before."""
    before: list[str | Path] = []
    for name in SOURCES:
        before += ["--constraints", _resolve_one(folder, name, before)]


def _resolve_one(folder: Path, name: str, constraints: list[str | Path]) -> Path:
    source, target = (SOURCES | ALONE)[name], folder / f"{name}.txt"
    requirement = None if source[0].startswith("-") or source[0].endswith(".py") else source[0].encode()
    # With this Python: else uv asks every Python of the machine for its version first.
    options = [*_OPTIONS, *constraints, "--python", sys.executable, "-o", target]
    words = source if requirement is None else ["-"]
    remedy = "correct the versions in pyproject.toml, or check the network and the index (UV_DEFAULT_INDEX)"
    uv_run(f"locks/{name}.txt", "pip", "compile", *words, *options, remedy=remedy, cwd=REPO, stdin=requirement)
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


def _inputs(name: str, folder: Path) -> str:
    """Return the digest of what a lock is made from: requirements, options, and the versions of the locks before it."""
    order = [*SOURCES]
    before = [pins(_text(folder / f"{other}.txt")) for other in (order[: order.index(name)] if name in SOURCES else [])]
    try:
        project = msgspec.toml.decode(_text(REPO / "pyproject.toml"))
        wanted = _requirements((SOURCES | ALONE)[name], project)
    except (KeyError, msgspec.DecodeError) as error:
        what = f"what locks/{name}.txt is made from cannot be read: {error!r}"
        remedy = "correct pyproject.toml or the head of noxfile.py, then run `nox -s lock`"
        raise ReleaseDataError(what, remedy=remedy) from None
    settings = project.get("tool", {}).get("uv", {}).get("environments", [])
    return lockfile.digest([*wanted, *_OPTIONS, *settings, *chain.from_iterable(before)])


def _requirements(source: list[str], project: dict[str, Any]) -> list[str]:
    """Return what a lock's source asks for: those of a group, of the noxfile, or the source itself."""
    if source[0] == "--group":
        return sorted(_group(source[1].partition(":")[2], project["dependency-groups"]))
    if source[0].endswith(".py"):
        found = _SCRIPT.search(_text(REPO / source[0]))
        script = msgspec.toml.decode(re.sub(r"^# ?", "", found[1] if found else "", flags=re.MULTILINE))
        return sorted(script.get("dependencies", []))
    return source


def _group(name: str, groups: dict[str, list[Any]]) -> Iterator[str]:
    for item in groups[name]:
        yield from [item] if isinstance(item, str) else _group(item["include-group"], groups)


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.is_file() else ""
