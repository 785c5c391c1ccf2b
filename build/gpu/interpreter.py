"""The Python that has torch, and an environment on top of it with the packages of a bundle."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from build.errors import EnvironmentUnfitError, UsageError

#: What the tests import, and a Python outside of a bundle must have.
NEEDED = ("pytest", "pytest_timeout", "xdist", "hypothesis", "numpy", "typer", "rich")
_SECONDS = 60.0
_ASK = """
import importlib.util, json, sys
print(json.dumps({
    "version": "%d.%d" % sys.version_info[:2],
    "missing": [name for name in sys.argv[1:] if importlib.util.find_spec(name) is None],
    "site": [path for path in sys.path if path.endswith(("site-packages", "dist-packages"))],
}))
"""


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python, its version, modules that were asked for and are not there, and the folders of its packages."""

    path: Path
    version: str
    missing: tuple[str, ...]
    site: tuple[str, ...]


def find(asked: Path | None) -> Interpreter:
    """Return the Python to use: the one asked for; else this one or the first on PATH that has torch.

    Raises:
        UsageError: the one asked for cannot be run or has no torch.
        EnvironmentUnfitError: there is none with torch.
    """
    tried = []
    for path in [asked.absolute()] if asked else _candidates():
        known = examine(path)
        tried.append(str(path))
        if known is not None and "torch" not in known.missing:
            return known
    if asked:
        raise UsageError(f"{asked} has no torch", remedy="give a Python with a CUDA build of torch: --python PATH")
    raise EnvironmentUnfitError(
        "no Python with torch was found",
        cause="tried " + ", ".join(tried),
        remedy="install a CUDA build of torch, or name the Python that has it: --python PATH",
    )


def _candidates() -> Iterator[Path]:
    """Yield this Python and those on PATH, each once."""
    seen = {Path(sys.executable)}
    yield from seen
    for folder in os.get_exec_path():
        for name in ("python3", "python"):
            path = Path(folder, name)
            if path not in seen and os.access(path, os.X_OK):
                seen.add(path)
                yield path


def examine(path: Path) -> Interpreter | None:
    """Ask a Python what it has; None if it cannot be run."""
    command: list[str | Path] = [path, "-c", _ASK, "torch", *NEEDED]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=True, cwd="/")
        answer = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError):
        return None
    return Interpreter(path, answer["version"], tuple(answer["missing"]), tuple(answer["site"]))


def layered(base: Interpreter, packages: Path, folder: Path) -> Path:
    """Make a virtual environment that sees `packages`, and below them all packages of `base`; return its Python.

    Raises:
        EnvironmentUnfitError: it cannot be made.
    """
    command: list[str | Path] = [base.path, "-m", "venv", "--system-site-packages", "--without-pip", folder]
    try:
        subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        cause = str(getattr(error, "stderr", "") or error).strip()
        raise EnvironmentUnfitError("the environment cannot be made", cause=cause) from None
    site = folder / "lib" / f"python{base.version}" / "site-packages"
    # Where `base` is itself a virtual environment, the new one sees the packages of the Python below it, not its own.
    lines = [f"import site; site.addsitedir({path!r})" for path in (str(packages), *base.site)]
    (site / "of_the_bundle.pth").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return folder / "bin" / "python"
