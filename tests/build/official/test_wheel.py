from __future__ import annotations

import hashlib
import time
from pathlib import Path

import msgspec
import pytest

from build import releases
from build.errors import DigestMismatchError, EnvironmentUnfitError, SourceError, WheelError
from build.official import fetch_wheel, unpack
from build.releases import Release

from .server import Index, make_wheel

NAME = "torch-2.6.0-cp311-cp311-manylinux1_x86_64.whl"
MEMBERS = {
    "torch/__init__.py": b"",
    "torch/include/c10/Half.h": b"half\n",
    "torch/lib/libc10.so": b"elf",
    "torch/version.py": b"__version__ = '2.6.0+cu124'\n",
}


def pinned(digest: str) -> Release:
    """2.6.0 with one wheel, of this digest."""
    entry = releases.get("2.6.0")
    wheel = msgspec.structs.replace(entry.wheel, pythons=("3.11",), sha256={"3.11": digest})
    return msgspec.structs.replace(entry, wheel=wheel)


@pytest.fixture
def data(tmp_path: Path) -> bytes:
    return make_wheel(tmp_path / "made.whl", MEMBERS)


def test_fetched_once(server: Index, data: bytes) -> None:
    release = pinned(server.add(NAME, data))
    path = fetch_wheel(release, "3.11")
    assert (path.name, path.read_bytes()) == (NAME, data)
    asked, start = len(server.requests), time.monotonic()
    assert fetch_wheel(release, "3.11") == path
    assert time.monotonic() - start < 1
    assert len(server.requests) == asked


def test_another_build_on_the_index_shows_both_digests(server: Index, data: bytes, cache: Path) -> None:
    found = server.add(NAME, data)
    with pytest.raises(DigestMismatchError) as caught:
        fetch_wheel(pinned("0" * 64), "3.11")
    assert f"pinned {'0' * 64}" in str(caught.value)
    assert f"found  {found}" in str(caught.value)
    assert list(cache.rglob("*.whl*")) == []


def test_impostor_in_a_find_links_folder_is_passed_over(
    server: Index, data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / NAME).write_bytes(b"rebuilt here")
    monkeypatch.setenv("PIP_FIND_LINKS", (tmp_path / "links").as_uri())
    assert fetch_wheel(pinned(server.add(NAME, data)), "3.11").read_bytes() == data


def test_offline_wheelhouse_serves(data: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "links" / NAME).write_bytes(data)
    monkeypatch.setenv("PIP_FIND_LINKS", (tmp_path / "links").as_uri())
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert fetch_wheel(pinned(hashlib.sha256(data).hexdigest()), "3.11").read_bytes() == data


def test_python_without_a_wheel_lists_those_with() -> None:
    with pytest.raises(EnvironmentUnfitError, match=r"no official wheel for Python 3\.7") as caught:
        fetch_wheel(pinned("0" * 64), "3.7")
    assert "3.11" in caught.value.cause


def test_index_without_it(server: Index) -> None:
    assert server.url
    with pytest.raises(SourceError, match=r"no wheel of torch 2\.6\.0"):
        fetch_wheel(pinned("0" * 64), "3.11")


def test_unpack_once_and_only_what_is_wanted(tmp_path: Path, data: bytes) -> None:
    assert data
    folder = unpack(tmp_path / "made.whl")
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert found == set(MEMBERS) - {"torch/__init__.py"}
    stamp = folder.stat().st_ctime_ns
    assert unpack(tmp_path / "made.whl") == folder
    assert folder.stat().st_ctime_ns == stamp


def test_other_content_is_unpacked_anew(tmp_path: Path, data: bytes) -> None:
    assert data
    make_wheel(tmp_path / "other.whl", MEMBERS | {"torch/include/c10/Half.h": b"HALF\n"})
    assert unpack(tmp_path / "other.whl") != unpack(tmp_path / "made.whl")


def test_member_that_reaches_outside_is_refused(tmp_path: Path, cache: Path) -> None:
    make_wheel(tmp_path / "evil.whl", MEMBERS | {"torch/include/../../../evil": b"evil"})
    with pytest.raises(WheelError, match="reaches outside"):
        unpack(tmp_path / "evil.whl")
    assert [path.name for path in (cache / "unpacked").iterdir() if path.suffix != ".lock"] == []
    assert list(tmp_path.rglob("evil")) == []


def test_damaged_wheel(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "cut.whl").write_bytes(data[:-30])
    with pytest.raises(WheelError, match="not a wheel"):
        unpack(tmp_path / "cut.whl")
