"""pip and uv install from the wheelhouse over a plain HTTP server, and check hashes."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import uv

from build.record import BuildRecord
from build.wheelhouse.publish import Request, publish
from docs.bench.wheelhouse import write_release
from tests.build.wheelhouse.conftest import RELEASE, served

OWN = ".".join(map(str, sys.version_info[:2]))
NAME = "multiworld-torch-overlay"
_SETTINGS = ("PIP_", "UV_", "HTTP_", "http_", "ALL_PROXY", "all_proxy")


@pytest.fixture
def made(tmp_path: Path) -> BuildRecord:
    """A build for this Python: small wheels, which pip and uv install as they do real ones."""
    return write_release(tmp_path / "dist", RELEASE, (OWN,))[0]


@pytest.fixture
def out(made: BuildRecord, tmp_path: Path) -> Path:  # noqa: ARG001 - `made` writes the wheels
    publish(Request((tmp_path / "dist",), tmp_path / "out"))
    return tmp_path / "out"


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """A fresh environment."""
    assert call(uv.find_uv_bin(), "venv", "-q", "--python", sys.executable, tmp_path / "venv").returncode == 0
    return tmp_path / "venv" / "bin" / "python"


def call(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command that finds no settings, caches or proxies of this machine."""
    env = {name: value for name, value in os.environ.items() if not name.startswith(_SETTINGS)}
    env |= {"PIP_CONFIG_FILE": os.devnull, "UV_NO_CONFIG": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    return subprocess.run(command, env=env, cwd="/", capture_output=True, text=True, timeout=120, check=False)


def pip(python: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return call(sys.executable, "-m", "pip", "--python", python, "install", "--no-cache-dir", *arguments)


def uv_pip(python: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return call(uv.find_uv_bin(), "pip", "install", "--no-cache", "--python", python, *arguments)


def installed(python: Path) -> set[str]:
    code = "from importlib.metadata import distributions as d; print(*(f'{i.name}=={i.version}' for i in d()))"
    return set(call(python, "-c", code).stdout.split())


@pytest.mark.parametrize("install", [pip, uv_pip])
def test_with_hashes(install: object, made: BuildRecord, out: Path, python: Path, tmp_path: Path) -> None:
    assert callable(install)
    version = made.provenance.version
    pins = [
        f"torch=={version} --hash=sha256:{made.patched.sha256}",
        f"{NAME}=={version} --hash=sha256:{made.overlay.sha256}",
    ]
    wanted = tmp_path / "requirements.txt"
    wanted.write_text("\n".join(pins))
    with served(out) as (url, _):
        index = ["--index-url", f"{url}/simple/", "--require-hashes", "-r", wanted]
        done = install(python, *index)
        assert done.returncode == 0, done.stdout + done.stderr
        assert installed(python) == {f"torch=={version}", f"{NAME}=={version}"}
        wanted.write_text(f"torch=={version} --hash=sha256:{'0' * 64}")
        other = install(python, *index, "--reinstall" if install is uv_pip else "--force-reinstall")
        assert other.returncode != 0


def test_a_wheel_that_was_replaced_on_the_server(made: BuildRecord, out: Path, python: Path) -> None:
    """Neither pip nor uv takes other bytes than the index and the command of the front page name."""
    place = out / "files" / made.overlay.name
    with zipfile.ZipFile(place) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    place.unlink()
    with zipfile.ZipFile(place, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    with served(out) as (url, _):
        refused = pip(python, "--index-url", f"{url}/simple/", f"{NAME}=={made.provenance.version}")
        assert refused.returncode != 0
        assert "THESE PACKAGES DO NOT MATCH THE HASHES" in refused.stderr
        refused = uv_pip(python, f"{NAME} @ {command_of(out, NAME, url)}")
        assert refused.returncode != 0
        assert "Hash mismatch" in refused.stderr
    assert installed(python) == set()


def command_of(out: Path, project: str, url: str) -> str:
    """The address of a project's wheel in the commands of the front page, which is served at `url`."""
    page = (out / "index.html").read_text(encoding="utf-8")
    command = page.partition(f"'{project} @ ")[2].partition("'")[0]
    return command.replace('<span class="here">https://ADDRESS-OF-THIS-PAGE</span>', url)


def test_the_command_of_the_front_page(made: BuildRecord, out: Path, python: Path) -> None:
    with served(out) as (url, _):
        done = pip(python, f"torch @ {command_of(out, 'torch', url)}")
        assert done.returncode == 0, done.stdout + done.stderr
    assert installed(python) == {f"torch=={made.provenance.version}"}


def test_a_yanked_wheel_is_not_chosen(made: BuildRecord, out: Path, python: Path, tmp_path: Path) -> None:
    (tmp_path / "dist" / f"{made.overlay.name}.yanked").write_text("leaks a group\n")
    publish(Request((tmp_path / "dist",), out))
    with served(out) as (url, asked):
        assert pip(python, "--dry-run", "--index-url", f"{url}/simple/", NAME).returncode != 0
        pinned = pip(python, "--dry-run", "--index-url", f"{url}/simple/", f"{NAME}=={made.provenance.version}")
    assert pinned.returncode == 0, pinned.stderr
    assert any(path.endswith(".whl.metadata") for path in asked), "METADATA was read out of the wheel"
    assert "leaks a group" in pinned.stdout + pinned.stderr
