"""Fetch all that the wheels of a wheelhouse require, so that hosts need no other index."""

from __future__ import annotations

import platform
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

import uv
from packaging.metadata import parse_email

from build.bootstrap import uv_settings
from build.console import step
from build.errors import EnvironmentUnfitError
from build.process import run
from build.wheelhouse.model import Form, Wheel
from build.wheelhouse.page import pythons
from build.wheels.platforms import newer, older

#: The system that dependencies are fetched for, unless a wheel itself needs a newer one.
SYSTEM = f"manylinux_2_28_{platform.machine()}"


def fetch(wheels: Sequence[Wheel], folder: Path) -> None:
    """Put the dependencies of `wheels` into `folder`; what lies there already is not fetched again.

    Raises:
        EnvironmentUnfitError: they cannot be resolved, or cannot be fetched.
    """
    own = {f"cp{sys.version_info.major}{sys.version_info.minor}"}
    named = {item.contents.tags.split("-", 1)[0] for item in wheels if pythons(item) != "any"}
    for python in sorted(f"{tag[2]}.{tag[3:]}" for tag in named or own):
        for first, together in _environments(wheels, python):
            step(f"dependencies of {first} for Python {python}")
            system = SYSTEM
            for tag in (item.platform.partition(".")[0] for item in together):
                system = newer(system, tag) if tag.startswith("manylinux_") else system
            _download(_pins(together, python, system), python, system, folder)


def _environments(wheels: Sequence[Wheel], python: str) -> Iterator[tuple[str, list[Wheel]]]:
    """Yield what is installed together: each wheel of a build with the newest ones that are not of a build."""
    fitting = [item for item in wheels if pythons(item) in ("any", python) and item.yanked is None]
    others = _newest(item for item in fitting if item.form is Form.OTHER)
    built = [item for item in fitting if item.form is not Form.OTHER]
    for item in built or others[:1]:
        yield item.name, [item, *(other for other in others if other.contents.project != item.contents.project)]


def _newest(wheels: Iterable[Wheel]) -> list[Wheel]:
    ordered = sorted(wheels, key=lambda item: (item.contents.project, item.contents.version))
    return [[*same][-1] for _, same in groupby(ordered, key=lambda item: item.contents.project)]


def _machine(system: str) -> str:
    return system.split("_", 3)[3]


def _pins(wheels: Sequence[Wheel], python: str, system: str) -> str:
    """Return the requirements of wheels, with hashes, without the wheels themselves."""
    machine = _machine(system)
    options = ["--python-version", python, "--python-platform", f"{machine}-{system.removesuffix(f'_{machine}')}"]
    options += ["--no-python-downloads", "--quiet", "--generate-hashes", "--no-header", "--no-annotate", "--only-binary", ":all:"]
    wanted = "\n".join(f"{item.contents.project}{_extras(item)} @ {item.path.resolve().as_uri()}" for item in wheels)
    done = run([uv.find_uv_bin(), "pip", "compile", "-", *options], stdin=wanted.encode(), env=uv_settings())
    if done.returncode:
        raise EnvironmentUnfitError(
            f"the dependencies of {wheels[0].name} cannot be resolved for Python {python} on {system}",
            cause=done.tail,
            remedy="check pip's index settings (`pip config list`); every dependency must be there as a wheel",
        )
    entries = done.stdout.decode().replace("\\\n", " ").splitlines()
    return "\n".join(line for line in entries if " @ file:" not in line)


def _extras(item: Wheel) -> str:
    """Return all extras of a wheel that is not of a build: those of torch are not for its users."""
    found = parse_email(item.contents.metadata)[0].get("provides_extra", []) if item.form is Form.OTHER else []
    return f"[{','.join(found)}]" if found else ""


def _download(pins: str, python: str, system: str, folder: Path) -> None:
    options = ["--only-binary", ":all:", "--python-version", python, "--implementation", "cp"]
    options += [word for tag in (*older(system), f"linux_{_machine(system)}") for word in ("--platform", tag)]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.write(pins)
        file.flush()
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes", *options]
        done = run([*command, "--dest", folder, "-r", file.name], timeout=4 * 3600.0)
    if done.returncode:
        raise EnvironmentUnfitError(
            f"dependencies for Python {python} could not be fetched",
            cause=done.tail,
            remedy="check disk space in dist/ and the network; what was fetched is kept",
        )
