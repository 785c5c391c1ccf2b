from __future__ import annotations

from pathlib import Path

import pytest

from build.errors import EnvironmentUnfitError
from build.official.index import IndexFile, files, wheels

from .server import Index

TORCH = "torch-2.6.0-cp311-cp311-manylinux1_x86_64.whl"
OTHERS = (
    "torch-2.6.0-cp312-cp312-manylinux1_x86_64.whl",
    "torch-2.6.0-cp311-cp311-manylinux_2_28_aarch64.whl",
    "torch-2.6.0-cp311-none-macosx_11_0_arm64.whl",
    "torch-2.6.0-cp311-cp311-win_amd64.whl",
    "torch-2.5.1-cp311-cp311-manylinux1_x86_64.whl",
    "torch-2.6.0.tar.gz",
)


@pytest.mark.parametrize("json", [False, True])
def test_the_one_wheel_that_fits(server: Index, json: bool) -> None:
    server.json = json
    digest = server.add(TORCH, b"torch")
    for name in OTHERS:
        server.add(name, b"other")
    assert len(files("torch")) == len(OTHERS)  # all but the tarball
    assert wheels("torch", "2.6.0", "3.11") == (IndexFile(TORCH, f"{server.url}/files/{TORCH}", digest),)


def test_free_threaded_python_is_another_one() -> None:
    file = IndexFile("torch-2.6.0-cp313-cp313t-manylinux1_x86_64.whl", "", "")
    assert not file.fits("3.13")


@pytest.mark.parametrize("platform", ["any", "manylinux1_x86_64.manylinux_2_5_x86_64"])
def test_wheel_for_every_python_fits(platform: str) -> None:
    assert IndexFile(f"nccl-1-py3-none-{platform}.whl", "", "").fits("3.11")


def test_unknown_project_is_nothing(server: Index) -> None:
    assert server.url
    assert files("no-such") == ()


def test_index_that_is_down_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://user:secret@127.0.0.1:9/simple")
    with pytest.raises(EnvironmentUnfitError) as caught:
        files("torch")
    assert "secret" not in str(caught.value)


def test_extra_index_and_folders_are_asked_too(server: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", server.url + "/simple")
    monkeypatch.setenv("PIP_INDEX_URL", (tmp_path / "local-index").as_uri())
    page = tmp_path / "local-index" / "torch" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text(f'<a href="../../files/{TORCH}" data-yanked="broken">{TORCH}</a>')
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / TORCH).write_bytes(b"local")
    monkeypatch.setenv("PIP_FIND_LINKS", (tmp_path / "links").as_uri())
    server.add(TORCH, b"torch")
    found = wheels("torch", "2.6.0", "3.11")
    assert [file.url.partition(":")[0] for file in found] == ["file", "file", "http"]
    assert found[1].url == (tmp_path / "files" / TORCH).as_uri()
