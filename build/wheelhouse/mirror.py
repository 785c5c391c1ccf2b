"""Fetch all that the wheels of a wheelhouse require, so that hosts need no other index."""

from __future__ import annotations

import platform
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from packaging.metadata import parse_email

from build.bootstrap import uv_settings
from build.console import step
from build.errors import EnvironmentUnfitError
from build.process import check_room, run, uv_run
from build.wheelhouse.model import Form, Wheel
from build.wheelhouse.page import pythons

#: The system that dependencies are fetched for, and pip's names for all that runs on it.
_MACHINE, _GLIBC = platform.machine(), 28
_NAMES = [f"manylinux_2_{minor}" for minor in range(_GLIBC, 4, -1)]
_NAMES += ["manylinux2014", "manylinux2010", "manylinux1", "linux"]


def fetch(wheels: Sequence[Wheel], folder: Path) -> None:
    """Put the dependencies of `wheels` into `folder`; what lies there already is not fetched again.

    Each wheel of a build is installed with those that are not of a build, but not with another one.

    Raises:
        EnvironmentUnfitError: they cannot be resolved, or cannot be fetched.
    """
    here = ".".join(map(str, sys.version_info[:2]))
    for python in sorted({pythons(item) for item in wheels} - {"any"}) or [here]:
        fitting = [item for item in wheels if pythons(item) in ("any", python) and item.yanked is None]
        others = [item for item in fitting if item.form is Form.OTHER]
        for item in [item for item in fitting if item.form is not Form.OTHER] or others[:1]:
            step(f"dependencies of {item.name} for Python {python}")
            _download(_pins([item, *(other for other in others if other is not item)], python), python, folder)


def _pins(wheels: Sequence[Wheel], python: str) -> str:
    options = ["--python-version", python, "--python-platform", f"{_MACHINE}-manylinux_2_{_GLIBC}", "--no-header"]
    options += ["--no-python-downloads", "--quiet", "--generate-hashes", "--no-annotate", "--only-binary", ":all:"]
    wanted = "\n".join(f"{item.contents.project}{_extras(item)} @ {item.path.resolve().as_uri()}" for item in wheels)
    what = f"the list of the dependencies of {wheels[0].name} for Python {python}"
    remedy = "check pip's index settings (`pip config list`); every dependency must be there as a wheel"
    command = ("pip", "compile", "-", *options)
    done = uv_run(what, *command, remedy=remedy, stdin=wanted.encode(), env=uv_settings())
    entries = done.stdout.decode().replace("\\\n", " ").splitlines()
    return "\n".join(line for line in entries if " @ file:" not in line)


def _extras(item: Wheel) -> str:
    """Return all extras of a wheel that is not of a build; those of torch are not for its users."""
    found = parse_email(item.contents.metadata)[0].get("provides_extra", []) if item.form is Form.OTHER else []
    return f"[{','.join(found)}]" if found else ""


def _download(pins: str, python: str, folder: Path) -> None:
    options = ["--quiet", "--no-deps", "--require-hashes", "--only-binary", ":all:", "--python-version", python]
    options += [word for name in _NAMES for word in ("--platform", f"{name}_{_MACHINE}")]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(pins)
        file.flush()
        command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), "-r", file.name]
        done = check_room(run(command, timeout=4 * 3600.0))
    if done.returncode:
        remedy = "check disk space in dist/ and the network; what was fetched is kept"
        what = f"dependencies for Python {python} cannot be fetched"
        raise EnvironmentUnfitError(what, cause=done.tail, remedy=remedy)
