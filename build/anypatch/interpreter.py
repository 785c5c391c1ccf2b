"""The C headers of a Python version, which units of libtorch_python include."""

from __future__ import annotations

import platform
import shutil
import sysconfig
from collections.abc import Iterable
from pathlib import Path

from build.errors import EnvironmentUnfitError
from build.process import run

_ASK = "import sysconfig; print(sysconfig.get_paths()['include'])"


def _include(version: str) -> Path | None:
    """Return the folder of headers of the interpreter of that version, None if there is no such interpreter."""
    if version == ".".join(platform.python_version_tuple()[:2]):
        return Path(sysconfig.get_paths()["include"])
    found = shutil.which(f"python{version}")
    done = run([found, "-c", _ASK], timeout=30) if found else None
    return Path(done.stdout.decode().strip()) if done and not done.returncode else None


def headers(version: str, named: Iterable[Path] = ()) -> Path:
    """Return the folder with `Python.h` of a Python version, e.g. `3.12`.

    Args:
        named: folders of the user, which come first.

    Raises:
        EnvironmentUnfitError: no such folder was found.
    """
    own = _include(version)
    wanted = f"python{version}"
    for folder in (*(path for path in named if path.name == wanted), *([own] if own else [])):
        if (folder / "Python.h").is_file():
            return folder
    raise EnvironmentUnfitError(
        f"the headers of Python {version} are missing",
        cause="the patch changes units of libtorch_python, which include Python.h; "
        + (f"{own} has none" if own else f"there is no python{version} on PATH"),
        remedy=f"install them, e.g. `apt-get install python{version}-dev` or `uv python install {version}`; "
        f"or name the folder: --include …/include/{wanted}",
    )
