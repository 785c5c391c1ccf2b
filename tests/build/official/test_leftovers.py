"""A kill or a power cut in the middle leaves gigabytes under names that nobody asks for: the next run removes them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from build.official import unpack
from build.official.headers import fetch_package
from build.paths import REPO
from build.releases import HeaderPackage

from .server import Index, make_wheel

MEMBERS = {"torch/include/c10/Half.h": b"half\n", "nvidia/nccl/include/nccl.h": b"nccl\n"}
NAME = "nvidia_nccl_cu12-2.21.5-py3-none-manylinux2014_x86_64.whl"
#: The process is killed in the middle of a stage, where it writes its files.
_KILLED = """
import os, signal, sys
from pathlib import Path
from build import releases
from build.official import headers, wheel

def killed(archive, *into):
    (into[-1] / "half").write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)

headers._extract = wheel._extract = killed
if sys.argv[1] == "unpack":
    wheel.unpack(Path(sys.argv[2]))
headers.fetch_package(releases.HeaderPackage(name="nvidia-nccl-cu12", version="2.21.5", reason="test"))
"""


def run_killed(*arguments: str | Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(REPO)}
    command: list[str | Path] = [sys.executable, "-c", _KILLED, *arguments]
    assert subprocess.run(command, cwd=REPO, env=env, check=False, timeout=60).returncode == -signal.SIGKILL


def test_what_a_killed_unpacking_left(tmp_path: Path, cache: Path) -> None:
    made = tmp_path / "made.whl"
    make_wheel(made, MEMBERS)
    for _ in range(2):  # the second one sweeps what the first has left, and leaves its own
        run_killed("unpack", made)
    (left,) = (cache / "unpacked").glob(".*.part")
    assert (left / "half").exists()
    other = cache / "unpacked" / ".another-one.1234.part"
    other.mkdir()
    folder = unpack(made)
    assert {path for path in (cache / "unpacked").iterdir() if path.is_dir()} == {folder, other}


def test_what_a_killed_fetch_of_headers_left(server: Index, tmp_path: Path, cache: Path) -> None:
    """Also from a server without ranges, whose wheel is fetched whole for a while."""
    server.add(NAME, make_wheel(tmp_path / "made.whl", MEMBERS))
    for ranges in (True, False):
        server.ranges = ranges
        run_killed("headers")
        (left,) = (cache / "headers").glob(".*.part")
        assert (left / "half").exists()
    folder = fetch_package(HeaderPackage(name="nvidia-nccl-cu12", version="2.21.5", reason="test"))
    assert [path for path in (cache / "headers").iterdir() if path.is_dir()] == [folder]
    assert list(cache.rglob("*.whl*")) == []
