"""The locks of the tools' environments: written from a real index, checked by digest, without resolver and network."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
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
gpu = [{ include-group = "test" }, "left"]
fleet = [{ include-group = "tooling" }]
sign = ["right"]
types = ["right"]
conda = ["right<3"]
[tool.uv]
environments = ["sys_platform == 'linux'"]
"""
SCRIPT = '# /// script\n# requires-python = ">=3.10"\n# dependencies = ["left"]\n# ///\n'
_INDEX = ("UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_INDEX", "UV_CONFIG_FILE", "PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")


def offer(index: Index, name: str, version: str, scratch: Path) -> None:
    info = f"{name}-{version}.dist-info"
    members = {
        f"{name}.py": b"",
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": f"{name}.py,,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n".encode(),
    }
    index.add(f"{name}-{version}-py3-none-any.whl", make_wheel(scratch / "made.whl", members))


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Index, Path]]:
    """An index with two projects, and a project with its locks, made once: uv takes a second for them."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "pyproject.toml").write_text(GROUPS)
    (folder / "noxfile.py").write_text(SCRIPT)
    with serving(Index()) as index:
        offer(index, "left", "1.0", folder)
        offer(index, "right", "2.0", folder)
        with pytest.MonkeyPatch.context() as patch:
            use(index, folder, patch)
            lock.lock()
        yield index, folder


def use(index: Index, folder: Path, patch: pytest.MonkeyPatch) -> None:
    """Let `lock` work on a project in `folder`, with an index that uv's cache of this machine does not know."""
    for name in (*_INDEX, "PIP_FIND_LINKS", "PIP_CERT", "PIP_NO_INDEX"):
        patch.delenv(name, raising=False)
    patch.setenv("UV_CACHE_DIR", str(folder / "uv-cache"))
    patch.setenv("UV_NO_CONFIG", "1")
    patch.setenv("NO_PROXY", "127.0.0.1")
    patch.setenv("UV_DEFAULT_INDEX", index.url + "/simple")
    patch.setattr(lock, "REPO", folder)
    patch.setattr(lock, "LOCKS", folder / "locks")
    patch.setattr(lock, "ALONE", {"conda": ["--group", "pyproject.toml:conda"], "cuda-9.9": ["left==1.*"]})


@pytest.fixture
def server(made: tuple[Index, Path]) -> Index:
    return made[0]


@pytest.fixture
def project(made: tuple[Index, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the project, to be changed."""
    folder = tmp_path / "project"
    shutil.copytree(made[1], folder, ignore=shutil.ignore_patterns("made.whl"))
    use(made[0], folder, monkeypatch)
    return folder


def content(project: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in (project / "locks").iterdir()}


def test_each_group_is_locked_with_hashes_and_names_no_index(project: Path, server: Index) -> None:
    assert sorted(content(project)) == [
        f"{name}.txt"
        for name in ("conda", "cuda-9.9", "fleet", "gpu", "lint", "nox", "sign", "test", "tooling", "types")
    ]
    digest = hashlib.sha256(server.files["left-1.0-py3-none-any.whl"]).hexdigest()
    assert content(project)["tooling.txt"].endswith(f"left==1.0 \\\n    --hash=sha256:{digest}\n")
    tooling, cuda = (lock.pins(content(project)[f"{name}.txt"]) for name in ("tooling", "cuda-9.9"))
    assert tooling == cuda  # a requirement, not a group
    assert lock.pins(content(project)["lint.txt"]) == ["left==1.0", "right==2.0"]
    assert "127.0.0.1" not in "".join(content(project).values())


def test_a_newer_version_on_the_index_leaves_the_lock_as_it_is(project: Path, server: Index, tmp_path: Path) -> None:
    offer(server, "left", "1.1", tmp_path)
    try:
        shutil.rmtree(project / "uv-cache")  # it knows the index as it was
        _stays_until_upgraded(project)
    finally:
        del server.files["left-1.1-py3-none-any.whl"]


def _stays_until_upgraded(project: Path) -> None:
    before = content(project)
    lock.lock(check=True)
    assert content(project) == before
    lock.lock()
    assert content(project) == before
    lock.lock(upgrade=True)
    assert all("left==1.1" in content(project)[name] for name in ("tooling.txt", "lint.txt", "nox.txt"))


@pytest.mark.parametrize(
    ("edit", "stale", "reason"),
    [
        ("group", "tooling", "what it is made from has changed since"),
        ("included group", "gpu", "what it is made from has changed since"),
        ("script", "nox", "what it is made from has changed since"),
        ("platform", "conda", "what it is made from has changed since"),
        ("version", "lint", "was changed by hand"),
        ("hash", "lint", "was changed by hand"),
        ("gone", "lint", "is not there"),
    ],
)
def test_a_lock_that_does_not_fit_is_named_and_not_changed(edit: str, stale: str, reason: str, project: Path) -> None:
    path = project / "locks" / f"{stale}.txt"
    groups = {
        "group": ('["left>=1"]', '["left>=1", "right"]'),
        "included group": ('test = ["right"]', 'test = ["right", "left"]'),
    }
    if edit in groups:
        rewrite(project / "pyproject.toml", *groups[edit])
    elif edit == "script":
        rewrite(project / "noxfile.py", '"left"', '"right"')
    elif edit == "platform":
        rewrite(project / "pyproject.toml", "'linux'", "'darwin'")
    elif edit == "gone":
        path.unlink()
    elif edit == "version":
        rewrite(path, "right==2.0", "right==2.1")
    else:
        path.write_text(re.sub("sha256:....", "sha256:0123", path.read_text()))
    before = content(project)
    with pytest.raises(ReleaseDataError, match=rf"out of date: .*locks/{stale}\.txt") as caught:
        lock.lock(check=True)
    assert f"locks/{stale}.txt: {reason}" in caught.value.cause
    assert "nox -s lock" in caught.value.remedy
    assert content(project) == before


def test_an_edited_lock_is_made_again(project: Path) -> None:
    before = content(project)
    rewrite(project / "locks" / "lint.txt", "right==2.0", "right==2.1")
    lock.lock()
    lock.lock(check=True)
    assert content(project) == before


def rewrite(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_lock_that_is_newer_than_the_one_before_it_is_named(project: Path) -> None:
    """`lint` is resolved with the versions of `tooling`: they are installed together."""
    rewrite(project / "locks" / "tooling.txt", "left==1.0", "left==1.1")
    with pytest.raises(ReleaseDataError) as caught:
        lock.lock(check=True)
    assert "locks/tooling.txt: was changed by hand" in caught.value.cause
    assert "locks/lint.txt: what it is made from has changed" in caught.value.cause
    assert "cuda-9.9" not in caught.value.cause


def test_the_check_runs_no_program(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert project.is_dir()
    monkeypatch.setattr(lock, "uv_run", lambda *_, **__: pytest.fail("a program was run"))
    lock.lock(check=True)


def test_comments_and_the_order_of_requirements_do_not_count(project: Path) -> None:
    rewrite(project / "pyproject.toml", '["left", "right"]', '[\n  "right",  # why\n  "left",\n]')
    lock.lock(check=True)


@pytest.mark.parametrize(("old", "new"), [("[dependency-groups]", "[dependency-groups"), ("sign =", "signs =")])
def test_a_project_that_cannot_be_read(old: str, new: str, project: Path) -> None:
    rewrite(project / "pyproject.toml", old, new)
    with pytest.raises(ReleaseDataError, match="cannot be read"):
        lock.lock(check=True)


def test_versions_that_do_not_exist(project: Path) -> None:
    (project / "pyproject.toml").write_text(GROUPS.replace("left>=1", "left>=9"))
    with pytest.raises(EnvironmentUnfitError, match=r"locks/tooling\.txt could not be made"):
        lock.lock()


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
    for name in (*_INDEX, "PIP_FIND_LINKS", "PIP_CERT", "PIP_NO_INDEX", "SSL_CERT_FILE"):
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "pip.conf"
    monkeypatch.setenv("PIP_CONFIG_FILE", str(file))
    file.write_text("[global]\nextra-index-url =\n    http://b/simple\n    http://c/simple\n")
    assert uv_settings().keys() <= {"SSL_CERT_FILE"}, "uv's default index is pip's"
    file.write_text(f"{file.read_text()}cert = /company.pem\n")
    assert uv_settings() == {"SSL_CERT_FILE": "/company.pem"}, "a proxy that has a certificate of its own"
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
    monkeypatch.setenv("SSL_CERT_FILE", "/mine.pem")
    assert "SSL_CERT_FILE" not in uv_settings(), "the user's own"
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://mine/simple")
    assert uv_settings() == {}, "a setting of uv's own comes first"
