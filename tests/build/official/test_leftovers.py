"""A kill or a power cut in the middle leaves gigabytes under names that nobody asks for: the next run removes them."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import msgspec

from build import releases
from build.official import unpack
from build.official.headers import fetch_package
from build.paths import REPO

from .server import Index, make_wheel

MEMBERS = {"torch/include/c10/Half.h": b"half\n", "nvidia/nccl/include/nccl.h": b"nccl\n"}
NAME = "nvidia_nccl_cu12-2.21.5-py3-none-manylinux2014_x86_64.whl"
#: Stands for SIGKILL in the middle of unpacking.
_KILLED = """
import os, signal, sys
from pathlib import Path
from build.official import wheel

def extract(archive, patterns, into):
    (into / "half").write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)

wheel._extract = extract
wheel.unpack(Path(sys.argv[1]))
"""


def test_what_a_killed_unpacking_left(tmp_path: Path, cache: Path) -> None:
    made = tmp_path / "made.whl"
    make_wheel(made, MEMBERS)
    for _ in range(2):
        done = subprocess.run([sys.executable, "-c", _KILLED, made], cwd=REPO, check=False, timeout=60)
        assert done.returncode == -signal.SIGKILL
    left = [path for path in (cache / "unpacked").iterdir() if path.name.startswith(".")]
    assert left
    other = cache / "unpacked" / ".another-one.1234.part"
    other.mkdir()
    folder = unpack(made)
    assert {path for path in (cache / "unpacked").iterdir() if path.is_dir()} == {folder, other}


def test_what_a_killed_fetch_of_headers_left(server: Index, tmp_path: Path, cache: Path) -> None:
    server.add(NAME, make_wheel(tmp_path / "made.whl", MEMBERS))
    package = msgspec.structs.replace(
        releases.get("2.6.0").header_packages[0], name="nvidia-nccl-cu12", version="2.21.5", headers_sha256=""
    )
    left = cache / "headers" / ".nvidia-nccl-cu12-2.21.5-unpinned.abcd.part"
    (left / "nvidia").mkdir(parents=True)
    folder = fetch_package(package)
    assert [path for path in (cache / "headers").iterdir() if path.is_dir()] == [folder]
