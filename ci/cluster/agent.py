"""Runs on a host, as a program on the standard input of its Python: standard library only, any Python since 3.8.

It speaks JSON, one object a line: first it tells what the host runs, then it is asked for one action and reports steps
and a result. A release is an environment of its own in PREFIX/releases/ID; PREFIX/current is a symbolic link to the one
in use, and changes in one step, last. When its input ends before the result, the other side is gone: what was begun is
then removed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, BinaryIO, Iterator  # noqa: UP035 - typing's, for Python 3.8

#: Written last into a release's folder; without it the release is not whole.
MARKER = "release.json"
#: Bytes: less than this is a full disk.
NO_ROOM = 4 << 20


class FailedError(Exception):
    """The end of an action: the cause, and the output of a command that failed."""

    def __init__(self, what: str, cause: str = "", output: str = "") -> None:
        super().__init__(what)
        self.what, self.cause, self.output = what, cause, output


class Gone(BaseException):
    """The side that asked is gone, or the host shuts down."""


def say(**event: object) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def step(text: str) -> None:
    say(event="step", text=text)


class Place:
    """The folder on this host that holds the releases."""

    def __init__(self, prefix: str) -> None:
        self.prefix = Path(prefix).expanduser()
        self.current = self.prefix / "current"
        self.previous = self.prefix / "previous"
        self.releases = self.prefix / "releases"
        self.wheels = self.prefix / "wheels"

    def running(self) -> Path | None:
        """Return the folder of the release in use, if it is whole."""
        return self._whole(self.current)

    def before(self) -> Path | None:
        return self._whole(self.previous)

    def _whole(self, link: Path) -> Path | None:
        folder = self.releases / Path(os.readlink(link)).name if link.is_symlink() else None  # noqa: PTH115
        return folder if self.name(folder) else None

    def name(self, folder: Path | None) -> str:
        """Return the release in a folder; empty when it is not whole."""
        if folder is None:
            return ""
        try:
            return str(json.loads((folder / MARKER).read_text(encoding="utf-8"))["release"])
        except (OSError, ValueError, KeyError, TypeError):
            return ""

    def kept(self, release: str) -> Path | None:
        """Return the folder of a release that this host has already."""
        return next((folder for folder in (self.running(), self.before()) if self.name(folder) == release), None)

    def fresh(self, release: str) -> Path:
        """Return a folder for a release that is not one of those in use and before it."""
        taken = (self.running(), self.before())
        names = (release, release + ".2", release + ".3")
        return next(self.releases / name for name in names if self.releases / name not in taken)

    def point(self, link: Path, folder: Path | None) -> None:
        """Let a link name a release's folder, in one step; None removes the link."""
        if folder is None:
            if link.is_symlink():
                link.unlink()
            return
        new = link.with_name(f".{link.name}.new")
        with contextlib.suppress(FileNotFoundError):
            new.unlink()
        new.symlink_to(Path("releases", folder.name))
        new.replace(link)

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        self.releases.mkdir(parents=True, exist_ok=True)
        with open(self.prefix / ".lock", "w") as lock:  # noqa: PTH123
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise FailedError("another installation is at work on this host", f"it holds {lock.name}") from None
            yield

    def sweep(self) -> None:
        """Remove what is not whole, and all but the two releases in use and before it."""
        kept = {self.running(), self.before()}
        for folder in self.releases.iterdir():
            if folder not in kept:
                shutil.rmtree(str(folder), ignore_errors=True)


def versions(folder: Path | None) -> dict[str, str]:
    """Return the distributions of an environment, read from the names of their metadata folders."""
    infos = folder.glob("lib/python*/site-packages/*.dist-info") if folder else ()
    pairs = (info.name[: -len(".dist-info")].partition("-") for info in infos)
    return {name.lower().replace("_", "-").replace(".", "-"): version for name, _, version in pairs}


def glibc() -> str:
    with contextlib.suppress(ValueError, OSError):
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
        return version if name == "glibc" else ""
    return ""


def state(place: Place) -> dict[str, Any]:
    folder, before = place.running(), place.before()
    return {
        "python": ".".join(map(str, sys.version_info[:2])),
        "machine": platform.machine(),
        "glibc": glibc(),
        "release": place.name(folder),
        "previous": place.name(before),
        "versions": versions(folder),
    }


def run(command: list[str] | str, timeout: float, tmp: Path | None = None) -> str:
    """Run a command, a text by the shell, and return its output; `FailedError`, with the end of that, if it fails."""
    shell = isinstance(command, str)
    shown = (command if isinstance(command, str) else " ".join(command))[:80]
    env = {**os.environ, "PYTHONNOUSERSITE": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "LC_ALL": "C.UTF-8"}
    if tmp is not None:
        env["TMPDIR"] = str(tmp)
    with subprocess.Popen(
        command,
        shell=shell,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        universal_newlines=True,
        start_new_session=True,
    ) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException as error:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise FailedError(f"{shown} did not end in {timeout:.0f} s") from None
            raise
    if process.returncode:
        said = (err.strip() or out).strip().splitlines()
        raise FailedError(f"{shown} failed with status {process.returncode}", "\n".join(said[-12:]), out)
    return out


def receive(place: Place, wheels: dict[str, dict[str, Any]], source: BinaryIO) -> None:
    """Ask for the wheels that this host lacks, and check each against its digest."""
    place.wheels.mkdir(parents=True, exist_ok=True)
    for path in place.wheels.iterdir():
        if path.name not in wheels:
            path.unlink()
    missing = [name for name, item in wheels.items() if digest(place.wheels / name) != item["sha256"]]
    need = sum(wheels[name]["size"] for name in missing)
    room = shutil.disk_usage(place.wheels).free
    if need > room:
        raise OSError(errno.ENOSPC, f"the wheels need {need >> 20} MB, {room >> 20} MB are free")
    say(event="send", names=missing)
    for name in missing:
        take(place.wheels / name, wheels[name]["size"], source)
        if digest(place.wheels / name) != wheels[name]["sha256"]:
            raise FailedError(f"{name} arrived with another digest than it was sent with")


def take(path: Path, size: int, source: BinaryIO) -> None:
    """Read a file of `size` bytes; on a full disk the rest is read all the same, so that the other side can end."""
    part, problem = path.with_name(path.name + ".part"), None
    with part.open("wb") as file:
        while size:
            block = source.read(min(size, 1 << 20))
            if not block:
                raise Gone
            size -= len(block)
            try:
                if problem is None:
                    file.write(block)
            except OSError as error:
                problem = error
    if problem is not None:
        part.unlink()
        raise problem
    part.replace(path)


def digest(path: Path) -> str:
    if not path.is_file():
        return ""
    found = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            found.update(block)
    return found.hexdigest()


def doctor(folder: Path, timeout: float) -> dict[str, list[str]]:
    """Return the names of the doctor's checks by verdict; empty where multiworld is not part of the release.

    Raises:
        FailedError: doctor gives no verdicts.
    """
    program = folder / "bin" / "multiworld"
    if not program.is_file():
        return {}
    try:
        said = run([str(program), "doctor", "--json"], timeout)
    except FailedError as error:
        if not error.output:
            raise
        said = error.output
    try:
        checks = json.loads(said)["checks"]
        found: dict[str, list[str]] = {}
        for check in checks:
            found.setdefault(check["verdict"], []).append(f"{check['name']}: {check['found']}")
    except (ValueError, KeyError, TypeError):
        raise FailedError("multiworld doctor --json gives no verdicts", said[-500:]) from None
    return found


def pip(folder: Path, timeout: float) -> list[str]:
    """Return the command of pip for an environment: the host's own, since 22.3; else one that is put inside."""
    python = str(folder / "bin" / "python")
    try:
        if tuple(map(int, version("pip").split(".")[:2])) >= (22, 3):
            return [sys.executable, "-m", "pip", "--python", python]
    except (PackageNotFoundError, ValueError):
        pass
    run([python, "-m", "ensurepip"], timeout)
    return [python, "-m", "pip"]


def healthy(folder: Path, timeout: float) -> dict[str, list[str]]:
    """Return what the doctor finds in an environment; `FailedError` if a check of it fails."""
    found = doctor(folder, timeout)
    if found.get("fail"):
        raise FailedError("multiworld doctor finds failures", "\n".join(found["fail"]))
    return found


def make(place: Place, asked: dict[str, Any], folder: Path) -> dict[str, list[str]]:
    """Make the environment of a release in its folder, check it, and mark it as whole."""
    tmp = folder / "tmp"  # on the disk of the release: a node's /tmp is often small, and in memory
    step("making the environment")
    run([sys.executable, "-m", "venv", "--without-pip", str(folder)], asked["timeout"])
    tmp.mkdir()
    requirements = folder / "requirements.txt"
    requirements.write_text(asked["requirements"], encoding="utf-8")
    links = ["--find-links", str(place.wheels)] if asked["wheels"] else []
    step("installing")
    program = pip(folder, asked["timeout"])
    options = ["--no-cache-dir", "--only-binary", ":all:"]
    run(
        [*program, "install", *options, *asked["pip"], *links, "--require-hashes", "-r", str(requirements)],
        asked["timeout"],
        tmp,
    )
    shutil.rmtree(str(tmp))
    step("checking")
    run([*program, "check"], asked["timeout"])
    found = healthy(folder, asked["timeout"])
    with (folder / MARKER).open("w") as file:
        json.dump({"release": asked["release"]}, file)
        file.flush()
        os.fsync(file.fileno())
    return found


def install(place: Place, asked: dict[str, Any], source: BinaryIO) -> dict[str, Any]:
    folder = None if asked["again"] else place.kept(asked["release"])
    if folder is not None:  # it is in use, or was until a roll-back
        say(event="send", names=[])
        watch(source)
        found = healthy(folder, asked["timeout"])
        if folder == place.running():
            return {"outcome": "unchanged", "doctor": found}
    else:
        place.sweep()
        receive(place, asked["wheels"], source)
        watch(source)
        folder = place.fresh(asked["release"])
        try:
            found = make(place, asked, folder)
        except FailedError as error:  # some programs do not say why they fail on a full disk
            full = shutil.disk_usage(str(place.prefix)).free < NO_ROOM
            raise FailedError(f"the disk is full: {error.what}" if full else error.what, error.cause) from None
        finally:
            if not place.name(folder):
                shutil.rmtree(str(folder), ignore_errors=True)
    switch(place, folder, asked)
    shutil.rmtree(str(place.wheels), ignore_errors=True)
    place.sweep()
    return {"outcome": "installed", "doctor": found}


def switch(place: Place, folder: Path, asked: dict[str, Any]) -> None:
    """Use a release from now on, and run the command for that; if it fails, use the one from before again."""
    old, older = place.running(), place.before()
    place.point(place.previous, old if old != folder else older)
    place.point(place.current, folder)
    if not asked["after"]:
        return
    step("running the command after the switch")
    try:
        run(asked["after"], asked["timeout"])
    except BaseException as error:
        place.point(place.current, old)
        place.point(place.previous, older)
        if old is not None:
            with contextlib.suppress(FailedError):
                run(asked["after"], asked["timeout"])
        if isinstance(error, FailedError):
            back = f"the host runs {place.name(old)} again" if old else "the host runs no release, as before"
            raise FailedError(f"{error.what}; {back}", error.cause) from None
        raise


def roll_back(place: Place, asked: dict[str, Any], source: BinaryIO) -> dict[str, Any]:
    folder = place.before()
    if folder is None:
        raise FailedError("this host has no release from before", "it was installed once, or rolled back already")
    found = healthy(folder, asked["timeout"])
    watch(source)
    switch(place, folder, asked)
    return {"outcome": "rolled back", "doctor": found}


def look(place: Place, asked: dict[str, Any], source: BinaryIO) -> dict[str, Any]:  # noqa: ARG001 - as the others
    folder = place.running()
    return {"outcome": "looked", "doctor": doctor(folder, asked["timeout"]) if folder else {}}


def watch(source: BinaryIO) -> None:
    """End this process when its input ends: nobody waits for the result any more."""

    def waiting() -> None:
        source.read()
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=waiting, daemon=True).start()


def _gone(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # what follows is the removal of what was begun
    raise Gone


def _cause(error: OSError) -> str:
    return f"{'the disk is full: ' if error.errno in (errno.ENOSPC, errno.EDQUOT) else ''}{error}"


def act(asked: dict[str, Any], source: BinaryIO) -> dict[str, Any]:
    """Do what is asked and return the result."""
    place = Place(asked["prefix"])
    actions = {"install": install, "roll-back": roll_back, "look": look}
    try:
        if asked["action"] == "look":
            return {**actions["look"](place, asked, source), **state(place)}
        with place.locked():
            return {**actions[asked["action"]](place, asked, source), **state(place)}
    except FailedError as error:
        return {"outcome": "failed", "what": error.what, "cause": error.cause, **state(place)}
    except OSError as error:
        return {"outcome": "failed", "what": _cause(error), "cause": "", **state(place)}


def main() -> int:
    """Tell the state, read one request, act on it."""
    source = sys.stdin.buffer
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _gone)
    try:
        prefix = json.loads(source.readline())["prefix"]
        say(event="state", **state(Place(prefix)))
        line = source.readline()
        if line:
            say(event="result", **act(json.loads(line), source))
    except (Gone, BrokenPipeError):
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
