"""The bare system of `nox -s fresh`: what README names, and commands that see nothing of this machine but its network.

Whole systems take minutes: `nox -s fresh` makes them, the tests take this machine's /usr instead.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

import pytest

from build.errors import EnvironmentUnfitError
from build.paths import REPO
from ci import fresh

_ALLOWED = os.geteuid() == 0 and subprocess.run([*fresh._UNSHARE, "true"], capture_output=True).returncode == 0
_ROOT_ONLY = pytest.mark.skipif(not _ALLOWED, reason="chroot and mounts need root, in a machine that allows them")


def test_readme_says_it_all() -> None:
    packages, commands = fresh.readme((REPO / "README.md").read_text())
    assert packages == ["python3-venv", "git", "g++"]
    assert commands == ["python3 noxfile.py -s build-2.6.0", "python3 noxfile.py -s tests"]


@pytest.mark.parametrize(("user", "status", "cause"), [(1000, 0, "another user"), (0, 1, "not permitted")])
def test_who_may_not_mount_gets_one_error(
    user: int, status: int, cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("debootstrap", "unshare", "apt-get"):
        (tmp_path / name).write_text(f"#!/bin/sh\necho not permitted >&2\nexit {status}\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setattr(os, "geteuid", lambda: user)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentUnfitError, match="by root only") as error:
        fresh.fresh()
    assert cause in error.value.cause


def test_missing_programs_are_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentUnfitError, match="without debootstrap and unshare and apt-get"):
        fresh.fresh()


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """A system with an empty clone; its programs are those of this machine."""
    root = tmp_path / "system"
    for name in ("dev", "proc", "sys", "usr", "etc/apt/apt.conf.d", str(fresh._CLONE)):
        (root / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64", "sbin"):
        if Path("/", name).is_symlink():
            (root / name).symlink_to(f"usr/{name}")
    return root


@_ROOT_ONLY
def test_settings_of_the_network_hold_inside(system: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip's files, an index that is a folder, certificates; each at its own path."""
    index = tmp_path / "index" / "simple"
    index.mkdir(parents=True)
    (index.parent / "files").mkdir()
    certificates = tmp_path / "company.pem"
    certificates.touch()
    config = tmp_path / "pip.conf"
    config.write_text(f"[global]\nextra-index-url = file://{index}\n[install]\nprefer-binary = true\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    kept = {"SSL_CERT_FILE": str(certificates)}
    outside = fresh._settings(system, kept)
    assert {index.parent, certificates} <= set(outside)
    assert "prefer-binary = true" in (system / "etc" / "pip.conf").read_text()
    seen = f'[ -d {index.parent}/files ] && [ -e "$SSL_CERT_FILE" ] && grep -q {index} /etc/pip.conf'
    assert fresh.inside(system, f"{seen} && [ $HOME = /root ]", [*outside, Path("/usr")], kept) == 0
    assert fresh.inside(system, f"[ -e {config} ] || [ -e {__file__} ]", [Path("/usr")], {}) == 1


@_ROOT_ONLY
def test_all_ends_with_the_command(system: Path, tmp_path: Path) -> None:
    seconds = f"50.{os.getpid()}"
    assert fresh.inside(system, f"sleep {seconds} >/dev/null 2>&1 & touch /begun; exit 7", [Path("/usr")], {}) == 7
    assert (system / "begun").exists()
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text()
    running = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            running.add(path.read_bytes())
    assert f"sleep\0{seconds}\0".encode() not in running
