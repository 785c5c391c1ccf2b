"""The wheels of a bundle: chosen from the lock for the Python of another machine, downloaded and checked with pip."""

from __future__ import annotations

import platform
import re
import sys
import tempfile
from collections.abc import Set as AbstractSet
from pathlib import Path

from packaging.requirements import Requirement

from build.errors import EnvironmentUnfitError
from build.process import run

#: glibc versions of the platform tags: manylinux 2 begins with 2.5; the newest is that of the machines to be served.
_GLIBC_MINORS = range(5, 40)
_OLD_NAMES = ("manylinux2014", "manylinux2010", "manylinux1", "linux")
_SECONDS = 1800.0


def requirements(lock: str, python: str) -> list[str]:
    """Return the lines of a lock that hold for CPython `python` (e.g. "3.12") on Linux, with hashes, without markers.

    pip evaluates markers for the Python that runs it, whatever Python it downloads for.
    """
    environment: dict[str, str | AbstractSet[str]] = {
        "implementation_name": "cpython",
        "platform_python_implementation": "CPython",
        "os_name": "posix",
        "platform_machine": platform.machine(),
        "platform_system": "Linux",
        "python_full_version": f"{python}.0",
        "python_version": python,
        "sys_platform": "linux",
    }
    found = []
    for line in lock.replace("\\\n", " ").splitlines():
        if not line[:1].isalnum():
            continue
        head, *hashes = re.split(r"\s+--hash=", line.strip())
        wanted = Requirement(head)
        if wanted.marker is None or wanted.marker.evaluate(environment):
            found.append(" ".join([f"{wanted.name}{wanted.specifier}", *(f"--hash={item}" for item in hashes)]))
    return found


def download(lines: list[str], python: str, folder: Path) -> None:
    """Download the wheels of requirements into `folder`; their own requirements are in the list already.

    Raises:
        EnvironmentUnfitError: no index in reach, no wheel for that Python, or a wheel with another hash.
    """
    machine = platform.machine()
    names = [f"manylinux_2_{minor}" for minor in reversed(_GLIBC_MINORS)] + list(_OLD_NAMES)
    platforms = [part for name in names for part in ("--platform", f"{name}_{machine}")]
    with tempfile.NamedTemporaryFile("w", suffix=".txt", encoding="utf-8") as file:
        file.write("\n".join(lines) + "\n")
        file.flush()
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", *platforms]
        command += ["--python-version", python, "--implementation", "cp", "--dest", str(folder)]
        done = run([*command, "--require-hashes", "-r", file.name], timeout=_SECONDS)
    if done.returncode:
        raise EnvironmentUnfitError(
            f"the wheels for Python {python} cannot be downloaded",
            cause=done.tail,
            remedy="check the network and pip's index; `nox -s lock` renews locks/gpu.txt",
        )
