from __future__ import annotations

import platform
import shutil
import stat
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import msgspec
import pytest

from build import preflight, releases
from build.errors import EnvironmentUnfitError
from build.releases import Release
from tests.build.official.settings import forget

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="needs Linux on x86_64")


@pytest.fixture(autouse=True)
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache of the test's own, an index that is not there, and the Python of the wheel, whatever runs the tests."""
    monkeypatch.setenv("MULTIWORLD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(platform, "python_version_tuple", lambda: ("3", "11", "0"))  # that of `release`'s wheel
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.delenv("CXX", raising=False)
    forget()


@pytest.fixture
def release(tmp_path: Path) -> Release:
    """2.6.0 with its wheel in the cache and no header packages: nothing has to be fetched."""
    entry = releases.get("2.6.0")
    folder = tmp_path / "cache" / "wheels" / entry.wheel.sha256["3.11"][:16]
    folder.mkdir(parents=True)
    (folder / "torch.whl").touch()
    return msgspec.structs.replace(entry, header_packages=())


def problems(release: Release, dist: Path, python: str = "3.11", **other: object) -> list[str]:
    with pytest.raises(EnvironmentUnfitError) as caught:
        preflight.check(release, python, dist, **other)  # type: ignore[arg-type]
    assert caught.value.exit_code == 5
    return [line for line in caught.value.cause.splitlines() if not line.startswith("  ")]  # causes are indented


def program(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_fit_machine_passes(release: Release, tmp_path: Path) -> None:
    """Nothing is raised, and the same machine is refused as soon as one thing is missing."""
    preflight.check(release, "3.11", tmp_path / "dist")
    assert len(problems(release, tmp_path / "dist", source=tmp_path / "nowhere")) == 1


def test_no_network_is_said_only_if_something_must_be_fetched(release: Release, tmp_path: Path) -> None:
    wanting = msgspec.structs.replace(release, header_packages=releases.get("2.6.0").header_packages[:1])
    (said,) = problems(wanting, tmp_path / "dist")
    assert "http://127.0.0.1:9/simple cannot be reached" in said
    assert "nvidia-cuda-runtime-cu12 must be fetched" in said


def test_python_without_a_wheel(release: Release, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentUnfitError, match=r"cannot build PyTorch 2\.6\.0: 1 problem\n") as caught:
        preflight.check(release, "3.7", tmp_path / "dist")
    (said,) = problems(release, tmp_path / "dist", "3.7")
    assert "no official wheel for Python 3.7" in said
    assert "3.9, 3.10, 3.11, 3.12, 3.13" in caught.value.cause


def test_no_compiler_and_no_git(release: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    said = "\n".join(problems(release, tmp_path / "dist"))
    assert "git is not on PATH" in said
    assert "no C++ compiler was found" in said


def test_compiler_too_old(release: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = program(tmp_path, "g++-7", 'case $1 in -dumpversion) echo 7.5.0;; *) echo "g++ 7.5.0";; esac')
    monkeypatch.setenv("CXX", str(old))
    (said,) = problems(release, tmp_path / "dist")
    assert "version 7.5.0; this release needs g++ 9 or newer" in said


def test_compiler_of_cxx_is_not_replaced_by_another(
    release: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "no-such-compiler"))
    (said,) = problems(release, tmp_path / "dist")
    assert f"CXX={tmp_path}/no-such-compiler is not a program" in said


@pytest.fixture
def no_312(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine whose only Python is the running one; a folder of its PATH."""
    (tmp_path / "bin").mkdir()
    for name in ("git", "g++", "nm", "objcopy", "c++filt", "ld", "ar", "readelf", "sh"):
        (tmp_path / "bin" / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", str(tmp_path / "none"))
    monkeypatch.setattr(preflight, "_network", lambda *_: iter(()))
    return tmp_path / "bin"


@pytest.mark.parametrize("text", ["", "echo 'pyenv: python3.12: command not found' >&2; exit 127"])
def test_a_python_to_import_the_wheel_with_is_looked_for_first(
    release: Release, tmp_path: Path, no_312: Path, text: str
) -> None:
    """It was found out when the wheels had been compiled and assembled."""
    if text:
        program(no_312, "python3.12", text)
    said = problems(release, tmp_path / "dist", "3.12")
    assert said[0].startswith("this machine has no working Python 3.12 to import the wheel with: install it")
    assert "uv python install 3.12" in said[0]
    preflight.check(release, "3.12", tmp_path / "dist", imported=False)
    assert not (tmp_path / "dist").exists()


def test_the_running_python_is_the_one_to_import_with(no_312: Path) -> None:
    own = ".".join(platform.python_version_tuple()[:2])
    assert preflight.interpreter(own) == Path(sys.executable)
    assert no_312.is_dir()


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def test_full_disk_names_the_folder_and_both_figures(
    release: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**12, 10**12, 100 << 20))
    said = problems(release, tmp_path / "dist")
    assert f"{tmp_path / 'dist'} has 100 MiB free" in said[0]
    assert said[1].startswith(f"{tempfile.gettempdir()} has 100 MiB free, 300 MiB are needed")
    assert "TMPDIR" in said[1]


def test_less_disk_is_needed_once_the_wheel_is_there(
    release: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**12, 0, 2_000 << 20))
    preflight.check(release, "3.11", tmp_path / "dist")
    said = problems(release, tmp_path / "dist", "3.12")
    assert any("4000 MiB are needed" in problem for problem in said)


@pytest.mark.parametrize(("system", "machine"), [("darwin", "arm64"), ("linux", "aarch64")])
def test_other_platform(
    release: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str, machine: str
) -> None:
    monkeypatch.setattr("sys.platform", system)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    (said,) = problems(release, tmp_path / "dist")
    assert said.startswith(f"this is {system} on {machine}")


def test_all_at_once(release: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10**12, 10**12, 0))
    said = problems(release, tmp_path / "dist", "3.7", source=tmp_path / "nowhere")
    assert len(said) == 7


@pytest.mark.parametrize("place", ["/proc/no-such-folder", "file/x"])
def test_a_cache_that_cannot_be_made(
    place: str, release: Release, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("MULTIWORLD_CACHE", str(tmp_path / place))
    with pytest.raises(EnvironmentUnfitError, match="the cache cannot have a folder") as caught:
        preflight.check(release, "3.11", tmp_path / "dist")
    assert "MULTIWORLD_CACHE" in caught.value.remedy


def test_nothing_is_started(release: Release, tmp_path: Path) -> None:
    """A check only asks: it fetches and writes nothing."""
    before = sorted(path for path in tmp_path.rglob("*") if path.is_file())
    problems(release, tmp_path / "dist", "3.7")
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == before
