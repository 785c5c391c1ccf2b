"""Ansible's module for a host: releases of torch as environments beside each other, one of which is in use.

PREFIX/releases/NAME is an environment, PREFIX/current a symbolic link to the one in use, PREFIX/cache what uv unpacked,
which environments are linked from. A prefix and a release that this made have a mark; nothing else is touched.
For any Python that ansible-core supports on hosts.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import os
import platform
import pwd
import re
import shutil
import sys
import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

OPTIONS: dict[str, dict[str, object]] = {
    # looked: read only; claimed: room and a driver are there, and the prefix is marked; made: the release is whole and
    # healthy; current: a release that was made is in use.
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


def marked(folder: Path) -> bool:
    """Return whether this has made a folder."""
    return (folder / MARK).is_file() and not folder.is_symlink()


def cuda() -> int:
    """Return the major version of CUDA that NVIDIA's driver is for, 0 without a driver."""
    version = ctypes.c_int(0)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version))
    return version.value // 1000


class Host:
    """A host with its releases. Each state of the module is a method, which returns what it has found."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module, self.asked, self.fail = module, module.params, module.fail_json
        self.undone = "would change" if module.check_mode else "not finished"
        text, home = self.asked["prefix"], os.path.expanduser("~")  # noqa: PTH111 - Path.home() may fail
        self.path = Path(os.path.expanduser(text))  # noqa: PTH111
        self.link, self.releases, self.cache = (self.path / name for name in ("current", "releases", "cache"))
        self.uv = self.cache / "uv-program"
        self.lock = re.sub(r'\bpath = "[^"]*/', f'path = "{self.cache}/wheels/', self.asked["lock"])
        taken = {os.path.realpath(path) for path in ("/", home, *(user.pw_dir for user in pwd.getpwall()))}
        if not self.path.is_absolute() or os.path.realpath(str(self.path)) in taken:
            self.fail(f"{text!r} cannot be the prefix: name a folder for this alone, absolute or below ~")
        if self.path.exists() and not marked(self.path) and any(self.path.iterdir()):
            self.fail(f"{self.path} has files of somebody else: name a new or an empty folder as the prefix")

    def kept(self) -> list[str]:
        """Return the whole releases, which have a lock, the one that was used last first."""
        whole = [path for path in self.releases.glob("*") if marked(path) and (path / LOCK).exists()]
        return [path.name for path in sorted(whole, key=lambda path: -(path / MARK).stat().st_mtime_ns)]

    def locks(self) -> str:
        """Return the locks of the kept releases, which have the SHA-256 of all that the cache has."""
        return "".join((self.releases / name / LOCK).read_text(encoding="utf-8") for name in self.kept())

    def used(self) -> str:
        """Return the release in use, empty for none; a link of somebody else is refused."""
        found = self.link.resolve()
        if os.path.lexists(str(self.link)) and found.parent != self.releases.resolve():
            self.fail(f"{self.link} is not a link of this installation: move it away")
        return found.name if found.name in self.kept() else ""

    def use(self, name: str) -> None:
        """Let the link name a release, in one step; without a name there is none."""
        new = self.path / ".current.new"
        (new if name else self.link).unlink(missing_ok=True)
        if name:
            new.symlink_to(f"releases/{name}")
            new.replace(self.link)
            os.utime(str(self.releases / name / MARK))

    def prune(self) -> None:
        """Remove all but the release in use, those used last, and what these and the lock have in the cache."""
        used = self.used()
        kept = {used, *[name for name in self.kept() if name != used][: self.asked["keep"]]}
        for folder in self.releases.glob("*"):
            if marked(folder) and folder.name not in kept:
                folder.replace(self.cache / f"removed-{folder.name}")  # in one step: there is never half a release
        for removed in self.cache.glob("removed-*"):
            shutil.rmtree(str(removed))
        locks = self.locks() + self.lock
        for sent in self.cache.glob("wheels/*"):
            if sent.name not in locks:
                sent.unlink()
        for unpacked in self.cache.glob("uv/archive-*/*"):
            if not any(path.stat().st_nlink > 1 for path in unpacked.rglob("*") if path.is_file()):
                shutil.rmtree(str(unpacked))

    def run(self, *words: str | Path, may_fail: bool = False) -> tuple[int, str, str]:
        """Run a command for as long as it may take; return its status, what it prints, and what is to be said of it."""
        own = {"UV_CACHE_DIR": f"{self.cache}/uv", "UV_NO_CONFIG": "1", "UV_SYSTEM_CERTS": "1"}
        command = ["timeout", str(self.asked["timeout"]), *map(str, words)]
        status, out, err = self.module.run_command(command, environ_update=own)
        how = "did not end in time" if status == 124 else f"failed with status {status}"
        end = "\n".join((err.strip() or out).splitlines()[-12:])
        why = f"{' '.join([Path(words[0]).name, *map(str, words[1:3])])[:80]} {how}\n{end}"
        if status and not may_fail:
            self.fail(why)
        return status, out, why

    def doctor(self, folder: Path) -> list[dict[str, str]]:
        """Return what `multiworld doctor` finds; nothing where multiworld is not part of the release.

        A release that is to be used must be well.
        """
        program = folder / "bin" / "multiworld"
        out = self.run(program, "doctor", "--json", may_fail=True)[1] if program.exists() else '{"checks": []}'
        try:
            found = self.module.from_json(out)["checks"]
            checks = [{key: str(check[key]) for key in ("name", "verdict", "found")} for check in found]
        except (ValueError, KeyError, TypeError):
            checks = [{"name": "multiworld doctor --json", "verdict": "fail", "found": "it gives no verdicts"}]
        bad = [f"{check['name']}: {check['found']}" for check in checks if check["verdict"] == "fail"]
        if bad and self.asked["state"] != "looked":
            self.fail("multiworld doctor finds failures: " + "; ".join(bad))
        return checks

    def looked(self) -> dict[str, object]:
        ours = self.used()  # nothing that a foreign link leads to is run
        return {"outcome": "looked", "doctor": self.doctor(self.link) if ours else []} if self.asked["doctor"] else {}

    def claimed(self) -> dict[str, object]:
        runtimes = re.findall(r'name = "nvidia-cuda-runtime[^"]*"\s+version = "(\d+)', self.lock)
        least, have = max(map(int, runtimes), default=0), self.locks()
        if 0 < cuda() < least:
            self.fail(f"NVIDIA's driver is too old: it is for CUDA {cuda()}, and the release needs CUDA {least}")
        sizes = re.findall(r'\bsize = (\d+)[^"]*sha256 = "(\w+)"', self.lock)
        need = LEAST + UNPACKED * sum(int(size) for size, digest in sizes if digest not in have)
        there = next(path for path in (self.path, *self.path.parents) if path.exists())
        if need > (free := shutil.disk_usage(str(there)).free):
            self.fail(f"the disk is full: the release needs {need >> 20} MB, {free >> 20} MB are free in {there}")
        if not self.module.check_mode:
            for folder in (self.releases, self.cache / "wheels"):
                folder.mkdir(parents=True, exist_ok=True)
            (self.path / MARK).touch()
        return {"changed": True, "wanted": self.asked["release"], "outcome": self.undone}

    def made(self) -> dict[str, object]:
        """Have a release that is whole and healthy: of a lock, or else a kept one."""
        name = self.asked["release"]
        kept = [one for one in self.kept() if one.startswith(name)]
        if self.lock and (self.asked["again"] or not kept):
            return self.claimed() if self.module.check_mode else self.filled()
        if not self.lock:
            kept = [one for one in kept if one == name] or kept
        if not self.lock and len(kept) != 1:
            self.fail(f"{len(kept)} kept releases begin with {name!r}; kept are: {', '.join(self.kept()) or 'none'}")
        outcome = "unchanged" if kept[0] == self.used() else self.undone
        return {"wanted": kept[0], "doctor": self.doctor(self.releases / kept[0]), "outcome": outcome}

    def filled(self) -> dict[str, object]:
        """Make an environment; whatever stops this, no part of it stays."""
        self.claimed()
        self.prune()
        again = time.strftime(".%Y%m%d-%H%M%S") if self.asked["release"] in self.kept() else ""
        folder = self.releases / f"{self.asked['release']}{again}"
        lock = folder / "pylock.part.toml"
        folder.mkdir()
        (folder / MARK).touch()
        try:
            lock.write_text(self.lock, encoding="utf-8")
            # It raises for another architecture, where a shell goes on.
            self.module.run_command([str(self.uv), "--version"], handle_exceptions=False)
            self.run(self.uv, "venv", "--allow-existing", "--python", sys.executable, folder)
            self.run(self.uv, "pip", "sync", "--preview-features", "pylock", "--python", folder / "bin/python", lock)
            found = self.doctor(folder)
            lock.rename(folder / LOCK)
        finally:
            if lock.exists():
                self.prune()
        return {"changed": True, "wanted": folder.name, "doctor": found, "outcome": self.undone}

    def current(self) -> dict[str, object]:
        """Have a kept release in use; if what follows the switch fails, that of before."""
        after, old = ("sh", "-c", self.asked["after"]), self.used()
        self.use(self.asked["release"])
        status, _, why = self.run(*after, may_fail=True)
        if status:
            self.use(old)
            if old:
                self.run(*after, may_fail=True)
            self.fail(f"{why}\nthe host runs {old or 'no release'} as before")
        self.prune()
        return {"changed": True, "outcome": "installed" if self.lock else "rolled back"}

    def facts(self) -> dict[str, object]:
        """Return what the host is and what it runs."""
        names = (path.stem.partition("-") for path in self.link.glob("lib/python*/site-packages/*.dist-info"))
        return {
            "prefix": str(self.path),
            "kind": "Python {}.{}, {}, {} {}".format(*sys.version_info[:2], os.uname().machine, *platform.libc_ver()),
            "uv": self.uv.stat().st_size if self.uv.exists() else 0,
            "release": self.used(),
            "kept": self.kept(),
            "versions": {name.lower().replace("_", "-"): version for name, _, version in names},
        }


def main() -> None:
    module = AnsibleModule(OPTIONS, supports_check_mode=True)
    try:
        host, state = Host(module), module.params["state"]
        if state in ("made", "current") and not module.check_mode:
            held = (host.path / ".lock").open("w")  # until this process ends
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        answer = getattr(host, state)()
        module.exit_json(changed=answer.pop("changed", False), host={**host.facts(), **answer})
    except BlockingIOError:
        module.fail_json("another installation is at work on this host: run again when it has ended")
    except OSError as error:
        module.fail_json(f"{error}; correct that there, or name another prefix")


if __name__ == "__main__":
    main()
