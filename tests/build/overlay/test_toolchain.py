"""Faults of the compiler are said in words, before anything is compiled."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from build.errors import EnvironmentUnfitError
from build.overlay import toolchain
from build.paths import REPO


def program(folder: Path, name: str, body: str) -> Path:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def only(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Make `folder` all of PATH, with binutils in it."""
    folder.mkdir(exist_ok=True)
    for tool in ("ar", "nm", "objcopy", "readelf", "c++filt", "ld"):
        (folder / tool).symlink_to(shutil.which(tool) or "")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(folder))


def test_the_real_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    found = toolchain.find(9)
    assert found.major >= 9
    assert found.cxx.is_file()
    assert str(found.major) in found.identity


def test_no_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, tmp_path / "bin")
    with pytest.raises(EnvironmentUnfitError, match=r"no C\+\+ compiler was found") as caught:
        toolchain.find(9)
    assert "apt-get install g++" in caught.value.remedy


def test_too_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, tmp_path / "bin")
    program(tmp_path / "bin", "g++", "echo 8.3.0")
    with pytest.raises(EnvironmentUnfitError, match=r"version 8\.3\.0; this release needs g\+\+ 9") as caught:
        toolchain.find(9)
    assert "CXX" in caught.value.remedy
    assert toolchain.find(8).major == 8


def test_cxx_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = program(tmp_path / "mine", "my-g++", "echo 13.1.0")
    monkeypatch.setenv("CXX", str(mine))
    found = toolchain.find(9)
    assert (found.cxx, found.major, found.identity) == (mine, 13, "13.1.0")


def test_cxx_names_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "absent"))
    with pytest.raises(EnvironmentUnfitError, match=f"CXX={tmp_path / 'absent'} is not a program"):
        toolchain.find(9)


@pytest.mark.parametrize("body", ["exit 1", ":", "echo nonsense"])
def test_a_compiler_that_does_not_work(body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(program(tmp_path / "bin", "g++", body)))
    with pytest.raises(EnvironmentUnfitError, match=r"not a working C\+\+ compiler"):
        toolchain.find(9)


def test_binutils_are_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    only(monkeypatch, tmp_path / "bin")
    program(tmp_path / "bin", "g++", "echo 12")
    (tmp_path / "bin" / "nm").unlink()
    with pytest.raises(EnvironmentUnfitError, match="binutils are missing: nm"):
        toolchain.find(9)


def test_clang_is_not_measured_by_gcc_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    body = 'case "$1" in --version) echo "clang version 7.0.1";; *) echo 4.2.1;; esac'
    monkeypatch.setenv("CXX", str(program(tmp_path / "bin", "clang++", body)))
    assert "clang" in toolchain.find(9).identity


_COMPILE = """
import sys
from build.errors import EnvironmentUnfitError
from build.overlay.toolchain import run_compiler
try:
    run_compiler(sys.argv[1:], timeout=60)
except EnvironmentUnfitError as error:
    sys.exit(str(error))
"""


def test_a_real_full_tmpdir_is_not_the_codes_fault(tmp_path: Path) -> None:
    """The compiler writes its temporary files to a file system of 64 kB, which only this test sees."""
    compiler, unshare = shutil.which("g++"), shutil.which("unshare")
    small = tmp_path / "small"
    small.mkdir()
    mount = [unshare or "", "--user", "--map-root-user", "--mount", "sh", "-c"]
    mount += ['mount -t tmpfs -o size=64k tmpfs "$1" && shift && exec "$@"', "sh", str(small)]
    if not (compiler and unshare) or subprocess.run([*mount, "true"], capture_output=True, timeout=60).returncode:
        pytest.skip("needs g++, and a machine that lets this test mount a file system of its own")
    source = tmp_path / "long.cpp"
    source.write_text("".join(f"int function_{n}(int a) {{ return a * {n} + 1; }}\n" for n in range(3000)))
    command = [*mount, sys.executable, "-c", _COMPILE, compiler, "-c", str(source), "-o", str(tmp_path / "long.o")]
    env = {**os.environ, "TMPDIR": str(small), "MULTIWORLD_CACHE": str(tmp_path / "cache"), "PYTHONPATH": str(REPO)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1, done.stderr
    assert "the disk is full: g++ cannot write" in done.stderr
    assert f"temporary files go to {small}" in done.stderr
    assert "set TMPDIR" in done.stderr
