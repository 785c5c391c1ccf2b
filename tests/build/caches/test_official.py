"""Damage to the cached wheel, to what is unpacked of it, and to headers: noticed before use, and made good."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from build import releases, seals
from build.errors import EnvironmentUnfitError, ToolError, WheelError
from build.official import fetch_package, fetch_wheel, unpack
from build.official.headers import tree_digest
from build.releases import HeaderPackage, Release
from tests.build.caches import damage
from tests.build.official.server import Index, make_wheel, serving
from tests.build.official.settings import forget

NAME = "torch-2.6.0-cp311-cp311-manylinux1_x86_64.whl"
HEADERS = "nvidia_nccl_cu12-2.21.5-py3-none-manylinux2014_x86_64.whl"
HEADER = "nvidia/nccl/include/nccl.h"
MEMBERS = {
    "torch/include/c10/Half.h": b"half\n" * 99,
    "torch/lib/libc10.so": bytes(range(256)) * 9,
    "torch/version.py": b"__version__ = '2.6.0+cu124'\n",
    HEADER: b"#define NCCL_MAJOR 2\n",
}
Damage = Callable[[Path], None]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_FIND_LINKS", "PIP_PROXY", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_RETRIES", "0")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("MULTIWORLD_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    with serving(Index()) as made:
        monkeypatch.setenv("PIP_INDEX_URL", made.url + "/simple")
        forget()
        yield made
        forget()


@pytest.fixture
def data(tmp_path: Path) -> bytes:
    return make_wheel(tmp_path / "made.whl", MEMBERS)


@pytest.fixture
def release(server: Index, data: bytes) -> Release:
    entry = releases.get("2.6.0")
    wheel = msgspec.structs.replace(entry.wheel, pythons=("3.11",), sha256={"3.11": server.add(NAME, data)})
    return msgspec.structs.replace(entry, wheel=wheel)


def package(server: Index, data: bytes, tmp_path: Path, *, pinned: bool) -> HeaderPackage:
    server.add(HEADERS, data)
    for name, text in MEMBERS.items():
        if "/include/" in name:
            (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "tree" / name).write_bytes(text)
    digest = tree_digest(tmp_path / "tree") if pinned else ""
    return HeaderPackage(name="nvidia-nccl-cu12", version="2.21.5", reason="test", headers_sha256=digest)


@pytest.mark.parametrize("harm", damage.SOME)
@pytest.mark.parametrize("sealed", [True, False])
def test_wheel(harm: Damage, sealed: bool, release: Release, data: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    path = fetch_wheel(release, "3.11")
    if sealed:
        assert fetch_wheel(release, "3.11") == path
    harm(path)
    assert fetch_wheel(release, "3.11").read_bytes() == data
    said = [line for line in capsys.readouterr().out.splitlines() if "damaged" in line]
    assert len(said) == 1


@pytest.mark.parametrize("harm", damage.SOME)
def test_seal_of_the_wheel(harm: Damage, release: Release, data: bytes) -> None:
    """The seal itself is a file of the cache: without it the wheel is read, never believed."""
    path = fetch_wheel(release, "3.11")
    assert fetch_wheel(release, "3.11") == path
    harm(path.with_name(path.name + ".seal"))
    damage.flip_and_keep_the_time(path)
    assert fetch_wheel(release, "3.11").read_bytes() == data


@pytest.mark.usefixtures("server")
def test_wheel_that_cannot_be_fetched_again(release: Release, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fetch_wheel(release, "3.11")
    damage.flip(path)
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    forget()
    with pytest.raises(EnvironmentUnfitError, match="cannot be reached") as caught:
        fetch_wheel(release, "3.11")
    assert caught.value.remedy


def test_a_wheel_known_well_is_not_read_again(release: Release, monkeypatch: pytest.MonkeyPatch) -> None:
    path = fetch_wheel(release, "3.11")
    assert fetch_wheel(release, "3.11") == path

    def unwanted(_: Path) -> str:
        raise AssertionError("read")

    monkeypatch.setattr(seals, "sha256_of", unwanted)
    assert fetch_wheel(release, "3.11") == path


@pytest.mark.parametrize("harm", damage.SOME)
def test_part_of_a_download(harm: Damage, release: Release, data: bytes, cache: Path) -> None:
    part = cache / "wheels" / release.wheel.sha256["3.11"][:16] / f"{NAME}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(data[: len(data) // 2])
    harm(part)
    assert fetch_wheel(release, "3.11").read_bytes() == data


@pytest.mark.parametrize("harm", damage.SOME)
@pytest.mark.parametrize("member", ["torch/include/c10/Half.h", "torch/lib/libc10.so"])
def test_unpacked(harm: Damage, member: str, tmp_path: Path, data: bytes) -> None:
    assert data
    folder = unpack(tmp_path / "made.whl")
    harm(folder / member)
    assert unpack(tmp_path / "made.whl") == folder
    assert (folder / member).read_bytes() == MEMBERS[member]


@pytest.mark.parametrize("harm", [damage.entry_file, damage.entry_empty])
def test_unpacked_as_a_whole(harm: Damage, tmp_path: Path, data: bytes) -> None:
    assert data
    folder = unpack(tmp_path / "made.whl")
    harm(folder)
    assert (unpack(tmp_path / "made.whl") / "torch/version.py").read_bytes() == MEMBERS["torch/version.py"]


def test_a_header_that_was_not_unpacked_is_not_included(tmp_path: Path, data: bytes) -> None:
    assert data
    folder = unpack(tmp_path / "made.whl")
    (folder / "torch/include/c10/More.h").write_text("stray")
    assert not (unpack(tmp_path / "made.whl") / "torch/include/c10/More.h").exists()


@pytest.mark.parametrize("place", range(0, 2000, 101))
def test_unpacking_a_damaged_wheel(place: int, tmp_path: Path, data: bytes) -> None:
    """Wherever the byte is: right content or an error for people, never a traceback."""
    wheel = tmp_path / "made.whl"
    damaged = bytearray(data)
    damaged[place % len(data)] ^= 0x41
    wheel.write_bytes(damaged)
    folder = None
    with contextlib.suppress(WheelError):
        folder = unpack(wheel)
    if folder is None:
        with pytest.raises(WheelError) as caught:
            unpack(wheel)
        assert caught.value.remedy
        return
    found = {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    # A byte of a name in the directory is a name; the wheel as a whole is pinned by its digest.
    assert set(found.values()) <= set(MEMBERS.values())


@pytest.mark.parametrize("harm", damage.SOME)
@pytest.mark.parametrize("pinned", [True, False])
def test_headers(harm: Damage, pinned: bool, server: Index, data: bytes, tmp_path: Path) -> None:
    wanted = package(server, data, tmp_path, pinned=pinned)
    folder = fetch_package(wanted)
    harm(folder / HEADER)
    assert (fetch_package(wanted) / HEADER).read_bytes() == MEMBERS[HEADER]


@pytest.mark.parametrize("harm", [damage.entry_file, damage.entry_empty])
def test_headers_as_a_whole(harm: Damage, server: Index, data: bytes, tmp_path: Path) -> None:
    wanted = package(server, data, tmp_path, pinned=True)
    harm(fetch_package(wanted))
    assert (fetch_package(wanted) / HEADER).read_bytes() == MEMBERS[HEADER]


@pytest.mark.parametrize("harm", damage.SOME)
def test_seal_of_headers(harm: Damage, server: Index, data: bytes, tmp_path: Path) -> None:
    wanted = package(server, data, tmp_path, pinned=False)
    folder = fetch_package(wanted)
    harm(folder.with_name(folder.name + ".seal"))
    damage.flip_and_keep_the_time(folder / HEADER)
    assert (fetch_package(wanted) / HEADER).read_bytes() == MEMBERS[HEADER]


def test_headers_of_a_damaged_wheel(server: Index, data: bytes, tmp_path: Path) -> None:
    wanted = package(server, data, tmp_path, pinned=False)
    damaged = bytearray(data)
    damaged[data.index(HEADER.encode()) + len(HEADER) + 3] ^= 0x41
    server.add(HEADERS, bytes(damaged))
    with pytest.raises(ToolError) as caught:
        fetch_package(wanted)
    assert caught.value.remedy


def test_a_file_where_the_cache_needs_a_folder(release: Release, cache: Path) -> None:
    cache.mkdir()
    (cache / "wheels").write_text("in the way")
    with pytest.raises(EnvironmentUnfitError, match="cannot have a folder") as caught:
        fetch_wheel(release, "3.11")
    assert "MULTIWORLD_CACHE" in caught.value.remedy
