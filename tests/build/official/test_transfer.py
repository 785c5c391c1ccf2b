from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from pathlib import Path

import pytest

from build.errors import DigestMismatchError, EnvironmentUnfitError, SourceError
from build.official import transfer
from build.official.transfer import RangeUnsupportedError, download, opened
from build.official.urls import shown
from build.paths import REPO

from .server import Index, make_wheel

DATA = bytes(range(256)) * 2000
DIGEST = hashlib.sha256(DATA).hexdigest()
NAME = "a-1-py3-none-any.whl"


def fetch(server: Index, top: Path, digest: str = DIGEST) -> Path:
    return download(f"{server.url}/files/{NAME}", top / NAME, digest)


def ranges(server: Index) -> list[str]:
    return [asked for _, path, asked in server.requests if path.startswith("/files/")]


def test_download(server: Index, tmp_path: Path) -> None:
    server.add(NAME, DATA)
    assert fetch(server, tmp_path).read_bytes() == DATA
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "cache") == [NAME]


def test_connection_that_breaks_is_resumed_where_it_broke(server: Index, tmp_path: Path) -> None:
    server.add(NAME, DATA)
    server.breaks = 2
    assert fetch(server, tmp_path).read_bytes() == DATA
    assert len(ranges(server)) == 3
    assert server.sent - len(DATA) < 3 * transfer._BLOCK  # what was sent twice


def test_server_without_ranges_starts_anew(server: Index, tmp_path: Path) -> None:
    server.add(NAME, DATA)
    server.breaks, server.ranges = 1, False
    assert fetch(server, tmp_path).read_bytes() == DATA


def test_connection_that_always_breaks_is_said_and_its_part_kept(server: Index, tmp_path: Path) -> None:
    server.add(NAME, DATA)
    server.breaks, server.keeps = 99, [0.75, 0.0]
    with pytest.raises(EnvironmentUnfitError, match="cannot be reached"):
        fetch(server, tmp_path)
    assert not (tmp_path / NAME).exists()
    assert (tmp_path / f"{NAME}.part").stat().st_size > len(DATA) // 2
    server.breaks = 0
    assert fetch(server, tmp_path).read_bytes() == DATA


def test_part_that_was_complete_is_only_checked(server: Index, tmp_path: Path) -> None:
    server.add(NAME, DATA)
    (tmp_path / f"{NAME}.part").write_bytes(DATA)
    assert fetch(server, tmp_path).read_bytes() == DATA
    assert server.sent == 0


def test_wrong_digest_shows_both_and_keeps_nothing(server: Index, tmp_path: Path) -> None:
    server.add(NAME, DATA)
    with pytest.raises(DigestMismatchError) as caught:
        fetch(server, tmp_path, "0" * 64)
    assert f"pinned {'0' * 64}" in str(caught.value)
    assert f"found  {DIGEST}" in str(caught.value)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(NAME)] == []


def test_rotten_part_is_found_out_and_fetched_from_its_start(server: Index, tmp_path: Path) -> None:
    server.add(NAME, DATA)
    (tmp_path / f"{NAME}.part").write_bytes(b"rotten" * 100)
    assert fetch(server, tmp_path).read_bytes() == DATA


def test_missing_file_is_the_servers_answer(server: Index, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="answers 404"):
        fetch(server, tmp_path)


def test_no_server(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentUnfitError, match="cannot be reached"):
        download("http://127.0.0.1:9/x.whl", tmp_path / "x.whl", DIGEST)


def test_local_file(tmp_path: Path) -> None:
    (tmp_path / "there.whl").write_bytes(DATA)
    assert download((tmp_path / "there.whl").as_uri(), tmp_path / "x.whl", DIGEST).read_bytes() == DATA


def test_credentials_are_not_shown() -> None:
    assert shown("https://user:secret@host:8080/simple/torch#sha256=1") == "https://host:8080/simple/torch"


_DOWNLOAD = """\
import sys
from pathlib import Path
from build.official.transfer import download
download(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
"""


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_an_ended_run_keeps_its_part_and_the_next_one_resumes(
    ending: signal.Signals, server: Index, tmp_path: Path
) -> None:
    server.add(NAME, DATA)
    server.stall = threading.Event()
    command = [sys.executable, "-c", _DOWNLOAD, f"{server.url}/files/{NAME}", str(tmp_path / NAME), DIGEST]
    process = subprocess.Popen(command, cwd=REPO, stderr=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(REPO)})
    assert server.stalled.wait(60)
    part = tmp_path / f"{NAME}.part"
    while not (part.exists() and part.stat().st_size):  # it reads on until nothing comes any more
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(ending)
    _, err = process.communicate(timeout=60)
    assert ending is signal.SIGKILL or b"KeyboardInterrupt" in err
    assert not (tmp_path / NAME).exists()
    kept = part.stat().st_size
    server.stall.set()
    server.stall = None
    assert fetch(server, tmp_path).read_bytes() == DATA
    assert ranges(server)[-1] == f"bytes={kept}-"
    assert not part.exists()


def test_remote_zip_is_read_without_the_rest(server: Index, tmp_path: Path) -> None:
    big = os.urandom(4_000_000)
    members = {"include/a.h": b"a\n", "lib/big.so": big, "z/METADATA": b"Name: x\n"}
    data = make_wheel(tmp_path / "x.whl", members)
    server.add(NAME, data)
    with opened(f"{server.url}/files/{NAME}") as stream, zipfile.ZipFile(stream) as archive:
        assert archive.read("z/METADATA") == b"Name: x\n"
        assert archive.read("lib/big.so") == big


def test_reading_goes_on_after_a_break(server: Index, tmp_path: Path) -> None:
    big = os.urandom(3_000_000)
    server.add(NAME, make_wheel(tmp_path / "x.whl", {"lib/big.so": big}))
    with opened(f"{server.url}/files/{NAME}") as stream, zipfile.ZipFile(stream) as archive:
        server.breaks = 3
        assert archive.read("lib/big.so") == big
    assert server.breaks == 0


def test_server_without_ranges_is_told_apart(server: Index) -> None:
    server.add(NAME, DATA)
    server.ranges = False
    with pytest.raises(RangeUnsupportedError), opened(f"{server.url}/files/{NAME}"):
        pass
