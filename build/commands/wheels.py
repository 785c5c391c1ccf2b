"""`wheels`: the package's own wheel, compiled once for every CPython from 3.10 on, judged by auditwheel, tried on each.

It is linked as an overlay is: against stubs of the system's libraries, so that it needs no newer system than it must.
"""

from __future__ import annotations

import json
import platform
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
import uv
from packaging.version import Version

from build.console import note, step
from build.errors import EnvironmentUnfitError, ProbeError, WheelError
from build.overlay import runtime, toolchain
from build.overlay.toolchain import Toolchain
from build.paths import DIST, REPO, TESTS, atomic_write
from build.process import run, uv_run
from build.wheels.platforms import newer
from build.wheeltest.environments import create, install_built

#: The oldest g++ that knows `-std=c++20`, and the newest system that the wheel may ask for.
_GCC = 10
_NEWEST = "manylinux_2_28_x86_64"
_OLDEST_PYTHON = (3, 10)
#: Runs in an environment that has the wheel, and not torch.
_TRIAL = TESTS / "wheel" / "engine_alone.py"


def wheels(
    dist: Annotated[Path, typer.Option(help="folder with the results; `wheelhouse` publishes it")] = DIST,
) -> None:
    """Build the package's wheel into dist/torch-multiworld, and try it on every CPython that can be had."""
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise EnvironmentUnfitError(f"this is {sys.platform} on {platform.machine()}; the wheel is for x86_64 Linux")
    compiler = toolchain.find(_GCC)
    with tempfile.TemporaryDirectory(prefix="wheel-") as scratch:
        step(f"the wheel, by {compiler.identity}")
        uv_run("the wheel", "build", "--wheel", "--out-dir", scratch, REPO, env=settings(compiler))
        wheel = next(Path(scratch).glob("*.whl"))
        check_tag(wheel)
        if not (works := ", ".join(tried(wheel, Path(scratch)))):
            raise EnvironmentUnfitError("no CPython to try the wheel on", remedy="install one, see `uv python list`")
        note(f"it works on CPython {works}")
        made = dist.absolute() / "torch-multiworld" / wheel.name
        with atomic_write(made) as part:
            shutil.copyfile(wheel, part)
    step(f"made: {made}")


def settings(compiler: Toolchain) -> dict[str, str]:
    """Return the variables with which hatch_build.py links for old systems."""
    libraries = ["-x", "none", *runtime.prepare(compiler, ())]  # the compiler is told that the source was C++
    return {"CXX": str(compiler.cxx), "LDLIBS": shlex.join(map(str, libraries))}


def check_tag(wheel: Path) -> None:
    """Raise WheelError unless the name says which platform the wheel needs, by auditwheel, and that is old enough."""
    done = run([sys.executable, "-m", "auditwheel", "show", "--json", wheel])
    if done.returncode:
        raise WheelError(f"auditwheel cannot read {wheel.name}", cause=done.tail)
    found = json.loads(done.stdout)
    tag = found["overall_tag"]
    note(f"auditwheel: {tag}")
    if newer(tag, _NEWEST) != _NEWEST or not wheel.stem.endswith(f"-cp310-abi3-{tag}"):
        what = f"{wheel.name} needs {tag}; its name must say that, and it may need no more than {_NEWEST}"
        cause = f"its libraries use {json.dumps(found['versioned_symbols'])}"
        remedy = "define what is too new in build/overlay/native/compat, or correct platform_tag in hatch_build.py"
        raise WheelError(what, cause=cause, remedy=remedy)


def tried(wheel: Path, scratch: Path) -> Iterator[str]:
    """Yield the Pythons on which the wheel works: all that this machine has, or that uv can fetch.

    Raises:
        ProbeError: there is one on which it does not.
    """
    # The versions of CPython that uv knows, e.g. `3.12`, oldest first.
    listed = json.loads(run([uv.find_uv_bin(), "python", "list", "--output-format", "json"]).stdout)
    plain = [item for item in listed if (item["implementation"], item["variant"]) == ("cpython", "default")]
    released = {Version(item["version"]).release[:2] for item in plain if not Version(item["version"]).is_prerelease}
    for python in [f"{major}.{minor}" for major, minor in sorted(released) if (major, minor) >= _OLDEST_PYTHON]:
        folder = scratch / f"python{python}"
        try:
            create(folder, f"cpython@{python}")
        except EnvironmentUnfitError as error:
            note(f"not on CPython {python}, which cannot be had: {error.cause.splitlines()[-1].strip()}")
            continue
        install_built(folder / "bin" / "python", [wheel])
        done = run([folder / "bin" / "python", "-I", _TRIAL], timeout=120)
        if done.returncode:
            raise ProbeError(f"{wheel.name} does not work on CPython {python}", cause=done.tail)
        yield done.stdout.decode().strip()
