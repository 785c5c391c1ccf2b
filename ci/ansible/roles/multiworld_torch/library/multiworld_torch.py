"""Ansible's module for a host: releases of torch as environments beside each other, one of which is in use.

PREFIX/releases/NAME is an environment, PREFIX/current a symbolic link to the one in use, PREFIX/cache what uv unpacked,
which environments are linked from. A prefix and a release that this made have a mark; nothing else is touched.
For any Python that ansible-core supports on hosts.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import platform
import pwd
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, Callable  # noqa: UP035 - typing's, for Python 3.8

from ansible.module_utils.basic import AnsibleModule

OPTIONS: dict[str, dict[str, Any]] = {
    # looked: read only; claimed: room and a driver are there, and the prefix is marked; made: the release is whole and
    # healthy; current: it is in use, too.
    "state": {"required": True, "choices": ["looked", "claimed", "made", "current"]},
    "prefix": {"required": True},
    "release": {"default": ""},  # its name; of a kept one the beginning is enough
    # The text of a pylock.toml; without it the release must be a kept one. What it names by path was sent to the cache.
    "lock": {"default": ""},
    "again": {"type": "bool", "default": False},  # make the release although it is kept
    "keep": {"type": "int", "default": 2},  # releases that stay beside the current one
    "after": {"default": ""},  # shell command after the switch; if it fails, the release from before is used again
    "doctor": {"type": "bool", "default": False},  # let `looked` run `multiworld doctor`
    "timeout": {"type": "int", "default": 1800},  # seconds for each command
}
MARK, LOCK = ".multiworld", "pylock.toml"
#: The disk that a release needs: bytes, and a multiple of the size of its wheels, which are sent and unpacked.
LEAST, UNPACKED = 64 << 20, 3
#: Runs words, or a line of the shell, and returns what they print; `judge=False` takes any exit status.
Run = Callable[..., str]


class UnfitError(Exception):
    """The end of a task, in words for people."""


def marked(folder: Path) -> bool:
    """Return whether this has made a folder."""
    return (folder / MARK).is_file() and not folder.is_symlink()


class Prefix:
    """The folder that holds the releases of a host."""

    def __init__(self, text: str) -> None:
        home = os.path.expanduser("~")  # noqa: PTH111 - Path.home() may fail
        self.path = Path(os.path.expanduser(text))  # noqa: PTH111
        self.link, self.releases, self.cache = (self.path / name for name in ("current", "releases", "cache"))
        taken = {os.path.realpath(path) for path in ("/", home, *(user.pw_dir for user in pwd.getpwall()))}
        if not self.path.is_absolute() or os.path.realpath(str(self.path)) in taken:
            raise UnfitError(f"{text!r} cannot be the prefix: name a folder for this alone, absolute or below ~")
        if self.path.exists() and not marked(self.path) and any(self.path.iterdir()):
            raise UnfitError(f"{self.path} has files of somebody else: name a new or an empty folder as the prefix")

    def lock(self) -> None:
        """Keep other installations out until this process ends."""
        self.held = (self.path / ".lock").open("w")
        try:
            fcntl.flock(self.held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UnfitError("another installation is at work on this host: run again when it has ended") from None

    def kept(self) -> list[str]:
        """Return the whole releases, which have a lock, the one that was used last first."""
        whole = [path for path in self.releases.glob("*") if marked(path) and (path / LOCK).exists()]
        return [path.name for path in sorted(whole, key=lambda path: -(path / MARK).stat().st_mtime_ns)]

    def locks(self) -> str:
        return "".join((self.releases / name / LOCK).read_text(encoding="utf-8") for name in self.kept())

    def have(self) -> set[str]:
        """Return the SHA-256 of what the kept releases consist of."""
        return set(re.findall(r'sha256 = "(\w+)"', self.locks()))

    def current(self) -> str:
        """Return the release in use, empty for none; a link of somebody else is refused."""
        found = self.link.resolve()
        if os.path.lexists(str(self.link)) and found.parent != self.releases.resolve():
            raise UnfitError(f"{self.link} is not a link of this installation: move it away")
        return found.name if found.name in self.kept() else ""

    def use(self, name: str) -> None:
        """Let the link name a release, in one step; without a name there is none."""
        new = self.path / ".current.new"
        with contextlib.suppress(FileNotFoundError):
            (new if name else self.link).unlink()
        if name:
            new.symlink_to(f"releases/{name}")
            new.replace(self.link)
            os.utime(str(self.releases / name / MARK))

    def prune(self, keep: int, lock: str = "") -> None:
        """Remove all but the current release, those used last, and what these and a lock have in the cache."""
        current = self.current()
        kept = {current, *[name for name in self.kept() if name != current][:keep]}
        for folder in self.releases.glob("*"):
            if marked(folder) and folder.name not in kept:
                folder.replace(self.cache / f"removed-{folder.name}")  # in one step: there is never half a release
        for removed in self.cache.glob("removed-*"):
            shutil.rmtree(str(removed))
        locks = self.locks() + lock
        for sent in self.cache.glob("wheels/*"):
            if sent.name not in locks:
                sent.unlink()
        for unpacked in self.cache.glob("uv/archive-*/*"):
            if not any(path.stat().st_nlink > 1 for path in unpacked.rglob("*") if path.is_file()):
                shutil.rmtree(str(unpacked))


def cuda() -> int:
    """Return the major version of CUDA that NVIDIA's driver is for, 0 without a driver."""
    version = ctypes.c_int(0)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return version.value // 1000


def doctor(folder: Path, run: Run, judge: bool = True) -> list[dict[str, str]]:
    """Return what `multiworld doctor` finds; nothing where multiworld is not part of the release."""
    program = folder / "bin" / "multiworld"
    try:
        found = json.loads(run([str(program), "doctor", "--json"], judge=False))["checks"] if program.exists() else []
        bad = [f"{check['name']}: {check['found']}" for check in found if check["verdict"] == "fail"]
    except (ValueError, KeyError, TypeError):
        if not judge:
            return [{"name": "multiworld doctor --json", "verdict": "fail", "found": "it gives no verdicts"}]
        raise UnfitError("multiworld doctor --json gives no verdicts") from None
    if bad and judge:
        raise UnfitError("multiworld doctor finds failures: " + "; ".join(bad))
    return list(found)


def looked(prefix: Prefix, asked: dict[str, Any], run: Run) -> dict[str, Any]:
    ours = prefix.current()  # nothing that a foreign link leads to is run
    found = doctor(prefix.link, run, judge=False) if ours else []
    return {"outcome": "looked", "doctor": found} if asked["doctor"] else {}


def claimed(prefix: Prefix, asked: dict[str, Any], run: Run) -> dict[str, Any]:  # noqa: ARG001 - as the others
    runtimes = re.findall(r'name = "nvidia-cuda-runtime[^"]*"\s+version = "(\d+)', asked["lock"])
    least, have = max(map(int, runtimes), default=0), prefix.have()
    if 0 < cuda() < least:
        raise UnfitError(f"NVIDIA's driver is too old: it is for CUDA {cuda()}, and the release needs CUDA {least}")
    sizes = re.findall(r'\bsize = (\d+)[^"]*sha256 = "(\w+)"', asked["lock"])
    need = LEAST + UNPACKED * sum(int(size) for size, digest in sizes if digest not in have)
    there = next(path for path in (prefix.path, *prefix.path.parents) if path.exists())
    free = shutil.disk_usage(str(there)).free
    if need > free:
        raise UnfitError(f"the disk is full: the release needs {need >> 20} MB, {free >> 20} MB are free in {there}")
    if not asked["dry"]:
        for folder in (prefix.releases, prefix.cache / "wheels"):
            folder.mkdir(parents=True, exist_ok=True)
        (prefix.path / MARK).touch()
    return {"changed": True}


def made(prefix: Prefix, asked: dict[str, Any], run: Run) -> dict[str, Any]:
    """Have a release that is whole and healthy."""
    kept = [name for name in prefix.kept() if name.startswith(asked["release"])]
    if asked["lock"] and (asked["again"] or not kept):
        claimed(prefix, asked, run)
        return {"changed": True, "wanted": asked["release"]} if asked["dry"] else filled(prefix, asked, run)
    if not asked["lock"]:
        kept = [name for name in kept if name == asked["release"]] or kept
        if len(kept) != 1:
            names = ", ".join(prefix.kept()) or "none"
            raise UnfitError(f"{len(kept)} kept releases begin with {asked['release']!r}; kept are: {names}")
    found = {"wanted": kept[0], "doctor": doctor(prefix.releases / kept[0], run)}
    return {**found, "outcome": "unchanged"} if kept[0] == prefix.current() else found


def common(lock: str, have: set[str]) -> str:
    """Return a lock without the packages of which no file is in `have`."""
    head, *packages = re.split(r"^(?=\[\[packages]])", lock, flags=re.MULTILINE)
    return head + "".join(text for text in packages if set(re.findall(r'sha256 = "(\w+)"', text)) & have)


def filled(prefix: Prefix, asked: dict[str, Any], run: Run) -> dict[str, Any]:
    """Make an environment; whatever stops this, no part of it stays."""
    prefix.prune(asked["keep"], asked["lock"])
    again = time.strftime(".%Y%m%d-%H%M%S") if asked["release"] in prefix.kept() else ""
    folder = prefix.releases / f"{asked['release']}{again}"
    lock = folder / "pylock.part.toml"
    folder.mkdir()
    (folder / MARK).touch()
    try:
        uv, python = str(prefix.cache / "uv-program"), str(folder / "bin" / "python")
        subprocess.call([uv, "--version"], stdout=subprocess.DEVNULL)  # raises for another architecture; shells go on
        run([uv, "venv", "--allow-existing", "--python", sys.executable, str(folder)])
        sync = [uv, "pip", "sync", "--preview-features", "pylock", "--python", python, str(lock)]
        # What a kept release has is in the cache; a server that says nothing of its age would be asked for it again.
        lock.write_text(common(asked["lock"], prefix.have()), encoding="utf-8")
        run([*sync, "--offline"], judge=False)
        lock.write_text(asked["lock"], encoding="utf-8")
        run(sync)
        run([uv, "pip", "check", "--python", python])
        found = doctor(folder, run)
        lock.rename(folder / LOCK)
    finally:
        if lock.exists():
            prefix.prune(asked["keep"])
    return {"changed": True, "wanted": folder.name, "doctor": found}


def current(prefix: Prefix, asked: dict[str, Any], run: Run) -> dict[str, Any]:
    """Have a release that is whole and healthy in use; if what follows the switch fails, that of before."""
    found, old = made(prefix, asked, run), prefix.current()
    name = found["wanted"]
    if asked["dry"] or old == name:
        return {**found, "outcome": "would change" if old != name else "unchanged"}
    prefix.use(name)
    try:
        run(asked["after"])
    except UnfitError as error:
        prefix.use(old)
        with contextlib.suppress(UnfitError):
            run(asked["after"] if old else "")
        raise UnfitError(f"{error}\nthe host runs {old or 'no release'} as before") from None
    prefix.prune(asked["keep"])
    return {**found, "changed": True, "outcome": "installed" if asked["lock"] else "rolled back"}


def host(prefix: Prefix) -> dict[str, Any]:
    """Return what the host is and what it runs; something is left to do, unless the state says otherwise."""
    uv = prefix.cache / "uv-program"
    infos = (path.name[: -len(".dist-info")] for path in prefix.link.glob("lib/python*/site-packages/*.dist-info"))
    return {
        "prefix": str(prefix.path),
        "python": ".".join(map(str, sys.version_info[:2])),
        "machine": os.uname().machine,
        "glibc": platform.libc_ver()[1],
        "outcome": "not finished",
        "uv": uv.stat().st_size if uv.exists() else 0,
        "release": prefix.current(),
        "kept": prefix.kept(),
        "versions": {name.lower().replace("_", "-"): version for name, _, version in (i.partition("-") for i in infos)},
    }


def runner(module: AnsibleModule, cache: Path) -> Run:
    def run(command: list[str] | str, judge: bool = True) -> str:
        words = ["sh", "-c", command] if isinstance(command, str) else command
        own = {"UV_CACHE_DIR": str(cache), "UV_NO_CONFIG": "1", "UV_PYTHON_DOWNLOADS": "never", "UV_SYSTEM_CERTS": "1"}
        limit = ["timeout", str(module.params["timeout"])]
        status, out, err = module.run_command([*limit, *words], environ_update={**own, "PYTHONNOUSERSITE": "1"})
        if status and judge:
            why = "did not end in time" if status == 124 else f"failed with status {status}"
            end = "\n".join((err.strip() or out).splitlines()[-12:])
            shown = " ".join([Path(words[0]).name, *words[1:3]])[:80]
            raise UnfitError(f"{shown} {why}\n{end}")
        return str(out)

    return run


def main() -> None:
    module = AnsibleModule(OPTIONS, supports_check_mode=True)
    asked = {**module.params, "dry": module.check_mode}
    try:
        prefix = Prefix(asked["prefix"])
        asked["lock"] = re.sub(r'\bpath = "[^"]*/', f'path = "{prefix.cache}/wheels/', asked["lock"])
        run = runner(module, prefix.cache / "uv")
        act = {"looked": looked, "claimed": claimed, "made": made, "current": current}[asked["state"]]
        if asked["state"] in ("made", "current") and not asked["dry"]:
            prefix.lock()
        answer = act(prefix, asked, run)
        module.exit_json(changed=answer.pop("changed", False), host={**host(prefix), **answer})
    except UnfitError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error}; correct that there, or name another prefix")


if __name__ == "__main__":
    main()
