"""Run the noxfile on a machine without nox: standard library only, in an environment in the user's cache."""

from __future__ import annotations

import ast
import contextlib
import difflib
import fcntl
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from argparse import ArgumentError, ArgumentParser
from collections.abc import Collection
from itertools import zip_longest
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
#: The file in an environment that holds its digest.
_READY = "ready"


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


def _cache() -> Path:
    """Return the project's cache folder as `build.paths` does, whose dependencies are not installed yet."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("MULTIWORLD_CACHE") or Path(base, "multiworld"))


def _make(folder: Path, requirements: Path) -> None:
    """Create the environment in place, since its scripts name its path."""
    print(f":: preparing {folder.parent.name} in {folder}", file=sys.stderr, flush=True)  # noqa: T201
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip: list[str | Path] = [folder / "bin" / "python", "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "--require-hashes", "-r", requirements], check=True)


def _digest(folder: Path) -> str:
    """Return a SHA-256 over the files of an environment, in a tenth of a second; Python's own caches do not count."""
    digest = hashlib.sha256()
    for top, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for path in (Path(top, name) for name in sorted(names)):
            if path != folder / _READY:
                digest.update(f"{path.relative_to(folder)}\0".encode("utf-8", "surrogateescape"))
                digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _is_ready(folder: Path) -> bool:
    try:
        return (folder / _READY).read_text(encoding="ascii") == _digest(folder)
    except (OSError, UnicodeDecodeError):
        return False


def _prepare(folder: Path, requirements: Path) -> None:
    """Replace the environment by a new one; its digest is written last."""
    if folder.is_dir() and not folder.is_symlink():
        shutil.rmtree(folder)
    else:
        folder.unlink(missing_ok=True)
    _make(folder, requirements)
    (folder / _READY).write_text(_digest(folder), encoding="ascii")


def advice(arguments: list[str], sessions: Collection[str], parser: ArgumentParser) -> str:
    """Return what to type instead of arguments that nox would refuse without a hint; empty when they are right.

    Args:
        arguments: of the command line.
        sessions: the names of all sessions.
        parser: nox's own, which alone knows nox's options.
    """
    if arguments and not arguments[0].startswith("-"):  # `build-2.6.0`: nox prints its usage only
        said = f"a session is named with -s\nto do:\n  python3 noxfile.py -s {shlex.join(arguments)}"
        return advice(["-s", *arguments], sessions, parser) or said
    before = arguments[: arguments.index("--")] if "--" in arguments else arguments
    parser.exit_on_error = parser.allow_abbrev = False  # `--key` of a session is not `--keywords`
    try:  # nox's --json has no value
        known, rest = parser.parse_known_args([word for word in before if not word.startswith("--json=")])
    except ArgumentError:  # nox says it
        return ""
    names: list[str] = getattr(known, "sessions", None) or []
    unknown = [name for name in names if name not in sessions]
    if typos := [name for name in unknown if name == names[0] or _similar(name, sessions)]:
        return "\n".join(_unknown(name, sessions) for name in typos)
    # These two are options of nox and of sessions: no session here is one of several Pythons, and nox lists as JSON.
    both = ("--python",) if getattr(known, "list_sessions", False) else ("--python", "--json")
    wrong = {*unknown, *rest, *(getattr(known, "posargs", None) or ())}
    places = [place for place, word in enumerate(before) if word in wrong or word.partition("=")[0] in both]
    return _behind(arguments, places[0]) if names and places else ""


def _behind(arguments: list[str], place: int) -> str:
    """Return the line in which all from `place` on is behind `--`."""
    wrong, moved = arguments[place], arguments[place:]
    if "--" in moved:
        moved.remove("--")
    line = [*arguments[:place], "--", *moved]
    what = "an argument of the session" if wrong.startswith("-") else "no session, but maybe an argument of one"
    return f"{wrong} is {what}: it goes behind --\nto do:\n  python3 noxfile.py {shlex.join(line)}"


def _similar(name: str, sessions: Collection[str]) -> list[str]:
    return difflib.get_close_matches(name, sessions, 1, 0.6)


def _unknown(name: str, sessions: Collection[str]) -> str:
    kind, _, release = name.partition("-")
    releases = [other.partition("-")[2] for other in sessions if other.startswith(f"{kind}-") and other[-1].isdigit()]
    if releases and (number := re.match(r"[0-9]+(\.[0-9]+)*", release)):
        near = min(releases, key=lambda known: _distance(known, number[0]))
        said = f"PyTorch {release} is not a release that this project knows: {', '.join(releases)}\n"
        said += f"to do:\n  python3 noxfile.py -s {kind}-{near}"
        adds = f"\n  python3 noxfile.py -s regenerate-patch -- {release}    # adds it"
        return said + (adds if number[0] == release else "")
    similar = _similar(name, sessions)
    hint = f"python3 noxfile.py -s {similar[0]}" if similar else "python3 noxfile.py -l lists the sessions"
    return f"there is no session {name}\nto do:\n  {hint}"


def _distance(one: str, other: str) -> list[int]:
    parts = ([int(part or 0) for part in text.split(".")] for text in (one, other))
    return [abs(a - b) for a, b in zip_longest(*parts, fillvalue=0)]


def _fail(message: str, status: int) -> int:
    print(f"error: {message}", file=sys.stderr)  # noqa: T201
    return status


def run_in_environment(here: Path, name: str, arguments: list[str]) -> int:
    """Run Python with `arguments` in an environment that has what `locks/<name>.txt` of the repository `here` pins.

    It replaces this process, so that signals reach it directly. The function returns only when that fails: 5 when the
    environment could not be made or this Python is too old.
    """
    if sys.version_info < (3, 10):  # noqa: UP036 - any Python may be asked to run the noxfile
        return _fail("Python 3.10 or newer is needed; run `python3.10 noxfile.py …` or newer", 5)
    requirements = here / "locks" / f"{name}.txt"
    key = hashlib.sha256(sys.version.encode() + requirements.read_bytes()).hexdigest()[:16]
    folder = _cache() / name / key
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        leases.take(folder)
        leases.inherit(folder)
        with folder.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not _is_ready(folder):
                _prepare(folder, requirements)
    except OSError as error:
        return _fail(
            f"the environment for {name} could not be made: {error}\n"
            f"cause:\n  the cache folder {folder.parent.parent} cannot be written\n"
            "to do:\n  set MULTIWORLD_CACHE to a folder with 200 MB free that you can write",
            5,
        )
    except subprocess.CalledProcessError as error:
        return _fail(
            f"the environment for {name} could not be made: {error}\n"
            "cause:\n  Python without venv and pip, no network to the package index, or no room in the cache folder\n"
            "to do:\n  install them (`apt-get install python3-venv`), or install nox yourself and run `nox`",
            5,
        )
    python = str(folder / "bin" / "python")
    paths = {"PATH": f"{folder / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}", "PYTHONPATH": str(here)}
    sys.stdout.flush()
    return os.execve(python, [python, *arguments], {**os.environ, **paths})  # noqa: S606 - no shell is wanted
