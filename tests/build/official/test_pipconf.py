from __future__ import annotations

from pathlib import Path

import pytest

from build.official.pipconf import DEFAULT_INDEX, index_urls, local_path, setting, wheel_folders


@pytest.fixture(autouse=True)
def nothing_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("PIP_INDEX_URL")
    monkeypatch.delenv("PIP_CONFIG_FILE")
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.setattr("sys.prefix", str(tmp_path / "prefix"))
    monkeypatch.setattr("build.official.pipconf.SYSTEM_CONFIG", tmp_path / "system.conf")
    return tmp_path


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_default_is_the_public_index() -> None:
    assert index_urls() == (DEFAULT_INDEX,)


def test_files_override_each_other_as_in_pip(nothing_set: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {
        "XDG_CONFIG_DIRS/pip/pip.conf": "global",
        "HOME/.pip/pip.conf": "legacy",
        "XDG_CONFIG_HOME/pip/pip.conf": "user",
        "prefix/pip.conf": "site",
        "chosen.conf": "chosen",
    }
    for name, value in files.items():
        write(nothing_set / name, f"[global]\nindex-url = http://{value}/simple/\n")
        if value == "chosen":
            monkeypatch.setenv("PIP_CONFIG_FILE", str(nothing_set / name))
        assert index_urls() == (f"http://{value}/simple",)
    monkeypatch.setenv("PIP_INDEX_URL", "http://environment/simple")
    assert index_urls() == ("http://environment/simple",)


def test_section_of_download_goes_first(nothing_set: Path) -> None:
    write(nothing_set / "prefix/pip.conf", "[global]\nproxy = a\n[download]\nproxy = b\n[install]\nproxy = c\n")
    assert setting("proxy") == "b"


def test_extra_indexes_and_underscores(nothing_set: Path) -> None:
    write(nothing_set / "prefix/pip.conf", "[global]\nextra_index_url =\n    http://b/simple\n    http://c/simple/\n")
    assert index_urls() == (DEFAULT_INDEX, "http://b/simple", "http://c/simple")


def test_no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert index_urls() == ()


def test_only_local_folders_of_find_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "wheels here").mkdir()
    url = (tmp_path / "wheels here").as_uri()
    monkeypatch.setenv("PIP_FIND_LINKS", f"{url} http://host/page.html {tmp_path}/missing")
    assert wheel_folders() == (tmp_path / "wheels here",)


def test_broken_file_is_left_to_pip(nothing_set: Path) -> None:
    write(nothing_set / "prefix/pip.conf", "no section\n")
    assert index_urls() == (DEFAULT_INDEX,)


@pytest.mark.parametrize(
    ("location", "path"), [("file:///a%20b/c", Path("/a b/c")), ("/a/b", Path("/a/b")), ("https://host/a", None)]
)
def test_local_path(location: str, path: Path | None) -> None:
    assert local_path(location) == path
