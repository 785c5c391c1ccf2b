"""The locks of the tools' environments: written from a real index, checked without a change."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import uv

from build.bootstrap import uv_settings
from build.commands import lock
from build.errors import EnvironmentUnfitError, ReleaseDataError
from tests.build.official.server import Index, make_wheel, serving

GROUPS = """
[dependency-groups]
tooling = ["left>=1"]
test = ["right"]
lint = ["left", "right"]
gpu = ["right"]
sign = ["right"]
conda = ["right<3"]
"""
SCRIPT = '# /// script\n# requires-python = ">=3.10"\n# dependencies = ["left"]\n# ///\n'
_INDEX = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_CONFIG_FILE", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")


def offer(index: Index, name: str, version: str, scratch: Path) -> str:
    info = f"{name}-{version}.dist-info"
    members = {
        f"{name}.py": b"",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n".encode(),
    }
    return index.add(f"{name}-{version}-py3-none-any.whl", make_wheel(scratch / "made.whl", members))


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """An index with two projects, which uv's cache of this machine does not know."""
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv-cache"))
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    for name in (*_INDEX, "PIP_FIND_LINKS", "PIP_CERT", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    with serving(Index()) as made:
        offer(made, "left", "1.0", tmp_path)
        offer(made, "right", "2.0", tmp_path)
        yield made


@pytest.fixture
def project(tmp_path: Path, server: Index, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UV_DEFAULT_INDEX", server.url + "/simple")
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "pyproject.toml").write_text(GROUPS)
    (folder / "noxfile.py").write_text(SCRIPT)
    monkeypatch.setattr(lock, "REPO", folder)
    monkeypatch.setattr(lock, "LOCKS", folder / "locks")
    monkeypatch.setattr(lock, "ALONE", {"conda": ["--group", "pyproject.toml:conda"], "cuda-9.9": ["left==1.*"]})
    lock.lock()
    return folder


def content(project: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in (project / "locks").iterdir()}


def test_each_group_is_locked_with_hashes_and_names_no_index(project: Path, server: Index) -> None:
    assert sorted(content(project)) == [
        *("conda.txt", "cuda-9.9.txt", "gpu.txt", "lint.txt", "nox.txt", "sign.txt", "test.txt", "tooling.txt")
    ]
    digest = hashlib.sha256(server.files["left-1.0-py3-none-any.whl"]).hexdigest()
    assert content(project)["tooling.txt"].endswith(f"left==1.0 \\\n    --hash=sha256:{digest}\n")
    assert content(project)["cuda-9.9.txt"] == content(project)["tooling.txt"]  # a requirement, not a group
    assert lock.pins(content(project)["lint.txt"]) == ["left==1.0", "right==2.0"]
    assert "127.0.0.1" not in "".join(content(project).values())


def test_a_newer_version_on_the_index_leaves_the_lock_as_it_is(project: Path, server: Index, tmp_path: Path) -> None:
    offer(server, "left", "1.1", tmp_path)
    before = content(project)
    lock.lock(check=True)
    assert content(project) == before
    lock.lock()
    assert content(project) == before
    lock.lock(upgrade=True)
    assert all("left==1.1" in content(project)[name] for name in ("tooling.txt", "lint.txt", "nox.txt"))


@pytest.mark.parametrize("stale", ["tooling", "lint", "nox"])
def test_a_lock_that_does_not_fit_is_named_and_not_changed(stale: str, project: Path) -> None:
    if stale == "tooling":
        text = GROUPS.replace('["left>=1"]', '["left>=1", "right"]')
        (project / "pyproject.toml").write_text(text)
    elif stale == "nox":
        (project / "noxfile.py").write_text(SCRIPT.replace('"left"', '"right"'))
    else:  # someone's edit
        path = project / "locks" / "lint.txt"
        path.write_text(path.read_text().partition("right==")[0])
    before = content(project)
    with pytest.raises(ReleaseDataError, match=rf"out of date: locks/{stale}\.txt\n") as caught:
        lock.lock(check=True)
    assert "nox -s lock" in caught.value.remedy
    assert content(project) == before


def test_without_a_network_the_check_says_that_it_did_not_check(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert project.is_dir()
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "another"))
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    lock.lock(check=True)
    assert "locks not checked" in capsys.readouterr().out


def test_versions_that_do_not_exist(project: Path) -> None:
    (project / "pyproject.toml").write_text(GROUPS.replace("left>=1", "left>=9"))
    with pytest.raises(EnvironmentUnfitError, match=r"locks/tooling\.txt cannot be resolved"):
        lock.lock(check=True)


def test_uv_installs_from_the_index_that_only_pip_knows(
    project: Path, server: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("UV_DEFAULT_INDEX")
    (tmp_path / "pip.conf").write_text(f"[global]\nindex-url = {server.url}/simple\n[install]\nno-index = 0\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    command: list[str | Path] = [
        uv.find_uv_bin(),
        "pip",
        "install",
        "--python",
        sys.executable,
        "--target",
        tmp_path / "target",
    ]
    command += ["--require-hashes", "-r", project / "locks" / "tooling.txt"]
    env = {**os.environ, "UV_CACHE_DIR": str(tmp_path / "third"), "UV_HTTP_RETRIES": "0"}
    subprocess.run(command, env={**env, **uv_settings()}, check=True, timeout=60)
    assert (tmp_path / "target" / "left.py").is_file()


def test_uv_gets_all_of_pips_settings_once_pip_has_an_index_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (*_INDEX, "PIP_FIND_LINKS", "PIP_CERT", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "pip.conf"
    monkeypatch.setenv("PIP_CONFIG_FILE", str(file))
    file.write_text("[global]\nextra-index-url =\n    http://b/simple\n    http://c/simple\n")
    assert uv_settings() == {}, "uv's default index is pip's"
    file.write_text(f"{file.read_text()}index-url = http://a/simple\nfind-links = /x /y\ntrusted-host = a b\n")
    monkeypatch.setenv("PIP_CERT", "/ca.pem")
    assert uv_settings() == {
        "UV_DEFAULT_INDEX": "http://a/simple",
        "UV_INDEX": "http://b/simple http://c/simple",
        "UV_FIND_LINKS": "/x,/y",
        "UV_INSECURE_HOST": "a b",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
        "SSL_CERT_FILE": "/ca.pem",
    }
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://mine/simple")
    assert uv_settings() == {}, "a setting of uv's own comes first"
