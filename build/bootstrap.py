"""Run the noxfile on a machine without nox: standard library only, in an environment in the user's cache."""

from __future__ import annotations

import ast
import contextlib
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from build import leases

#: Settings of pip with uv's variables for them; uv separates the values of the second kind with commas.
_OF_PIP = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "no-index": "UV_NO_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
}
_LISTS_OF_PIP = {"find-links": "UV_FIND_LINKS"}
#: The file in an environment that tells that it is whole.
READY = "ready"


def pip_settings() -> dict[str, dict[str, str]]:
    """Return pip's configuration by section; the section `:env:` holds what variables say."""
    for pip in ([sys.executable, "-m", "pip"], ["pip"]):
        with contextlib.suppress(OSError):
            done = subprocess.run([*pip, "config", "list"], capture_output=True, text=True, check=False)
            if not done.returncode:
                break
    else:
        return {}
    found: dict[str, dict[str, str]] = {}
    for section, key, value in re.findall(r"^([\w:-]+)\.([\w-]+)=(.+)$", done.stdout, re.M):
        found.setdefault(section, {})[key] = " ".join(str(ast.literal_eval(value)).split())
    return found


def uv_settings() -> dict[str, str]:
    """Return the variables that give uv the index of pip's configuration, since uv does not read pip's files.

    Where pip uses its default index, only its certificates; none where a variable of uv's names an index.
    """
    if any(name in os.environ for name in ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_CONFIG_FILE")):
        return {}
    pip = pip_settings()
    found = {**pip.get("global", {}), **pip.get("install", {}), **pip.get(":env:", {})}  # a later one overrides
    if "SSL_CERT_FILE" in os.environ:  # the user's own, for uv
        found.pop("cert", None)
    if not found.keys() & {"index-url", "no-index"}:
        return {"SSL_CERT_FILE": found["cert"]} if "cert" in found else {}
    # pip takes the best version of all indexes; uv would stop at the first index that has the project.
    settings = {"UV_INDEX_STRATEGY": "unsafe-best-match"}
    settings |= {name: found[key] for key, name in _OF_PIP.items() if key in found}
    settings |= {name: found[key].replace(" ", ",") for key, name in _LISTS_OF_PIP.items() if key in found}
    return settings


def _make(folder: Path, requirements: Path) -> None:
    """Create the environment in place, since its scripts name its path."""
    print(f":: preparing {folder.parent.name} in {folder}", file=sys.stderr, flush=True)  # noqa: T201
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip: list[str | Path] = [folder / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "--require-hashes", "-r", requirements], check=True)


def _prepare(folder: Path, requirements: Path) -> None:
    if (folder / READY).is_file() and (folder / "bin" / "python").is_file():
        return
    if folder.is_dir() and not folder.is_symlink():
        shutil.rmtree(folder)
    else:
        folder.unlink(missing_ok=True)
    _make(folder, requirements)
    (folder / READY).touch()


def _fail(what: str, cause: str, remedy: str) -> int:
    print(f"error: {what}\ncause:\n  {cause}\nto do:\n  {remedy}", file=sys.stderr)  # noqa: T201
    return 5


def run_in_environment(here: Path, name: str, arguments: list[str]) -> int:
    """Run Python with `arguments` in an environment that has what `locks/<name>.txt` of the repository `here` pins.

    It replaces this process, so that signals reach it directly. The function returns only when that fails: 5 when the
    environment could not be made or this Python is too old.
    """
    if sys.version_info < (3, 10):  # noqa: UP036 - any Python may be asked to run the noxfile
        return _fail("Python 3.10 or newer is needed", "this one is older", "run `python3.10 noxfile.py …` or newer")
    requirements = here / "locks" / f"{name}.txt"
    key = hashlib.sha256(sys.version.encode() + requirements.read_bytes()).hexdigest()[:16]
    try:
        # The project's cache folder as `build.paths` has it, whose dependencies are not installed yet.
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        folder = Path(os.environ.get("MULTIWORLD_CACHE") or Path(base, "multiworld")) / name / key
    except RuntimeError as error:
        return _fail("there is no folder for the cache", str(error), "set HOME or MULTIWORLD_CACHE to one")
    python = str(folder / "bin" / "python")
    paths = {"PATH": f"{folder / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}", "PYTHONPATH": str(here)}
    what = f"the environment for {name} could not be made"
    try:
        if Path(sys.prefix) == folder:
            return _fail(f"{folder} is damaged", "files of it were removed", "remove that folder, and run again")
        folder.parent.mkdir(parents=True, exist_ok=True)
        leases.take(folder)
        leases.inherit(folder)
        with folder.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _prepare(folder, requirements)
        sys.stdout.flush()
        return os.execve(python, [python, *arguments], {**os.environ, **paths})  # noqa: S606 - no shell is wanted
    except OSError as error:
        cause = f"the cache folder {folder.parent.parent} cannot be written, or what it has is damaged"
        return _fail(f"{what}: {error}", cause, "set MULTIWORLD_CACHE to a folder with 200 MB free that you can write")
    except subprocess.CalledProcessError as error:
        cause = "Python without venv and pip, no network to the package index, or no room in the cache folder"
        remedy = "install them (`apt-get install python3-venv`), or install nox yourself and run `nox`"
        return _fail(f"{what}: {error}", cause, remedy)


@contextmanager
def status_of_tooling() -> Iterator[None]:
    """End nox with the exit status of the tooling's command that a block runs, if that fails; nox says 1 for each.

    The sessions after it do not run. nox itself reports a command that a signal ended, or that was not started.
    """
    try:
        yield
    except Exception as failure:
        # Only newer versions of nox have the status as a number; the words are the same in all.
        if status := re.fullmatch(r"Returned code (\d+)", str(failure)):
            sys.exit(int(status[1]))
        raise
