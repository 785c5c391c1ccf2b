from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from build import releases
from build.errors import DigestMismatchError, SourceError
from build.official.headers import fetch_headers, fetch_package, tree_digest
from build.releases import HeaderPackage

from .server import Index, make_wheel

NAME = "nvidia_nccl_cu12-2.21.5-py3-none-manylinux2014_x86_64.whl"
MEMBERS = {
    "nvidia/nccl/include/nccl.h": b"#define NCCL_MAJOR 2\n",
    "nvidia/nccl/include/deep/net.h": b"net\n",
    "nvidia/nccl/lib/libnccl.so.2": os.urandom(20_000_000),
    "nvidia_nccl_cu12-2.21.5.dist-info/METADATA": b"Name: nvidia-nccl-cu12\n",
}


@pytest.fixture
def nccl(server: Index, tmp_path: Path) -> HeaderPackage:
    """The package on the index, pinned to what `sha256sum` says of its headers."""
    server.add(NAME, make_wheel(tmp_path / "made.whl", MEMBERS, stored=("nvidia/nccl/lib/libnccl.so.2",)))
    for name, data in MEMBERS.items():
        if "/include/" in name:
            (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / "tree" / name).write_bytes(data)
    return HeaderPackage(
        name="nvidia-nccl-cu12", version="2.21.5", reason="test", headers_sha256=tree_digest(tmp_path / "tree")
    )


def test_only_headers_come_and_only_once(server: Index, nccl: HeaderPackage) -> None:
    folder = fetch_package(nccl)
    assert {path.name for path in folder.rglob("*") if path.is_file()} == {"nccl.h", "net.h"}
    assert server.sent < len(server.files[NAME])
    asked = len(server.requests)
    assert fetch_package(nccl) == folder
    assert len(server.requests) == asked


def test_of_several_builds_the_first_one_is_taken(server: Index, nccl: HeaderPackage, tmp_path: Path) -> None:
    """Although the index names the second one before it."""
    second = make_wheel(tmp_path / "second.whl", {**MEMBERS, "nvidia/nccl/include/nccl.h": b"#define NCCL_MAJOR 3\n"})
    server.files = {NAME.replace("-py3", "-2-py3"): second, **server.files}
    (header,) = fetch_package(nccl).rglob("nccl.h")
    assert header.read_bytes() == MEMBERS["nvidia/nccl/include/nccl.h"]


def test_include_folders_in_the_order_of_the_entry(nccl: HeaderPackage) -> None:
    release = msgspec.structs.replace(releases.get("2.6.0"), header_packages=(nccl,))
    assert [path.parts[-3:] for path in fetch_headers(release)] == [("nvidia", "nccl", "include")]


def test_server_without_ranges_sends_the_wheel(server: Index, nccl: HeaderPackage, cache: Path) -> None:
    server.ranges = False
    assert (fetch_package(nccl) / "nvidia/nccl/include/nccl.h").read_bytes() == b"#define NCCL_MAJOR 2\n"
    assert list(cache.rglob("*.whl*")) == []


def test_other_headers_are_refused_with_both_digests(nccl: HeaderPackage, cache: Path) -> None:
    with pytest.raises(DigestMismatchError) as caught:
        fetch_package(msgspec.structs.replace(nccl, headers_sha256="0" * 64))
    assert f"pinned {'0' * 64}" in str(caught.value)
    assert f"found  {nccl.headers_sha256}" in str(caught.value)
    assert [path.name for path in (cache / "headers").iterdir() if path.suffix != ".lock"] == []


def test_digest_notices_a_changed_a_moved_and_a_new_header(nccl: HeaderPackage) -> None:
    folder = fetch_package(nccl)
    header = folder / "nvidia/nccl/include/nccl.h"
    header.write_bytes(b"#define NCCL_MAJOR 3\n")
    assert tree_digest(folder) != nccl.headers_sha256
    header.write_bytes(b"#define NCCL_MAJOR 2\n")
    assert tree_digest(folder) == nccl.headers_sha256
    header.rename(header.with_name("nccl2.h"))
    assert tree_digest(folder) != nccl.headers_sha256
    (header.with_name("nccl2.h")).rename(header)
    header.with_name("extra.h").touch()
    assert tree_digest(folder) != nccl.headers_sha256


def test_package_without_headers_and_package_that_is_not_there(server: Index, tmp_path: Path) -> None:
    server.add("empty-1-py3-none-any.whl", make_wheel(tmp_path / "e.whl", {"empty/__init__.py": b""}))
    with pytest.raises(SourceError, match="no include folder"):
        fetch_package(HeaderPackage(name="empty", version="1", reason="test"))
    with pytest.raises(SourceError, match="no wheel of absent 1"):
        fetch_package(HeaderPackage(name="absent", version="1", reason="test"))
