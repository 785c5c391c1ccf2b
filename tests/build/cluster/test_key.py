"""`--key`: what the wheelhouse has is signed, fresh, and comes from it, or no host hears of it."""

from __future__ import annotations

import platform
import shutil
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
import uv
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from build import cli
from build.cli import guarded, only
from build.errors import ClaimError, ToolError
from build.wheelhouse import attestation
from build.wheelhouse.signer import Signer
from build.wheelhouse.trust import NAME
from ci.cluster.__main__ import install
from ci.cluster.lock import REQUEST, Request, lock
from docs.bench.wheelhouse import write_release
from tests.build.cluster.conftest import Site
from tests.build.official.server import Index
from tests.build.wheelhouse.conftest import served
from tests.build.wheelhouse.test_install import OWN, call


def _key(path: Path) -> tuple[Path, Path]:
    """Write a key and its public half."""
    key = Ed25519PrivateKey.generate()
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public = path.with_suffix(".pub")
    public.write_text(attestation.PublicKey(key.public_key()).pem)
    return path, public


@pytest.fixture
def request_in(tmp_path_factory: pytest.TempPathFactory) -> Callable[[Request], str]:
    """Return what writes a request into a folder of its own."""

    def write(asked: Request) -> str:
        folder = tmp_path_factory.mktemp("locks")
        (folder / REQUEST).write_bytes(msgspec.json.encode(asked))
        return str(folder)

    return write


def test_a_key(
    tmp_path: Path,
    request_in: Callable[[Request], str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Signed by it, by another one, and a wheelhouse whose index has a file that its signed list lacks."""
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(int(time.time())))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("UV_NO_CACHE", "1")
    (key, public), (_, other) = _key(tmp_path / "key.pem"), _key(tmp_path / "other.pem")
    python = ".".join(map(str, sys.version_info[:2]))
    for version, out in (("9.1.0", "house"), ("9.2.0", "newer")):
        write_release(tmp_path / "dist" / version, version, (python,))
        words = ["wheelhouse", str(tmp_path / "dist" / version), "--out", str(tmp_path / out), "--key", str(key)]
        assert cli.main([*words, "--dist", str(tmp_path / "none")]) == 0, capsys.readouterr().err
    house = tmp_path / "house"

    def locked(url: str) -> str:
        asked = Request(("multiworld-torch-overlay",), (f"{url}/simple",), signer=Signer(str(public)))
        return lock(request_in(asked), f"Python {python}, {platform.machine()}, glibc 2.39").read_text()

    with served(house) as (url, _):
        assert "9.1.0" in locked(url)
        site = Site(tmp_path, Index())
        wanted = ("multiworld-torch-overlay", "--index", f"{url}/simple", "--key", public)
        status, hosts, said = site.run(*wanted, "--inventory", site.local("one"), "--check")
        assert (status, hosts["one"]["outcome"]) == (26, "would change"), said
        words = ["multiworld-torch-overlay", "--hosts", "a", "--index", f"{url}/simple", "--key", str(other)]
        assert guarded(only(install), words) == ClaimError.exit_code
        assert "is not signed by key" in capsys.readouterr().err
        for path in [*(tmp_path / "newer").glob("simple/*/*"), *(tmp_path / "newer").glob("files/*")]:
            (house / path.relative_to(tmp_path / "newer")).write_bytes(path.read_bytes())
        with pytest.raises(ClaimError, match="would come from another index"):
            locked(url)


def test_every_file_in_turn(
    tmp_path: Path, request_in: Callable[[Request], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is read of a wheelhouse on the way to a host, each with another byte: refused here, or by uv on the host."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("UV_NO_CACHE", "1")
    key, public = _key(tmp_path / "key.pem")
    write_release(tmp_path / "dist" / "9.1.0", "9.1.0", (OWN,))
    house, target = tmp_path / "house", tmp_path / "there"
    assert cli.main(["wheelhouse", "--dist", str(tmp_path / "dist"), "--out", str(house), "--key", str(key)]) == 0
    files = [path for path in house.rglob("*") if path.is_file() and "overlay" in str(path.relative_to(house))]
    not_read = {path for path in files if path.suffix == ".json" and path.name != "index.json"}  # copies, for people

    def installed(url: str) -> bool:
        asked = Request(("multiworld-torch-overlay",), (f"{url}/simple",), signer=Signer(str(public)))
        locked = lock(request_in(asked), f"Python {OWN}, {platform.machine()}, glibc 2.39")
        (tmp_path / "pylock.toml").write_text(locked.read_text())
        command: list[str | Path] = [
            uv.find_uv_bin(),
            "pip",
            "install",
            "--target",
            target,
            "-r",
            tmp_path / "pylock.toml",
        ]
        return not call(
            *command, "--no-cache", "--preview-features", "pylock", "--no-deps", "--python", sys.executable
        ).returncode

    with served(house) as (url, _):
        assert installed(url)
        for path in [house / NAME, *sorted({*files} - not_read)]:
            before = path.read_bytes()
            path.unlink()  # a wheel is a link to the one in dist/
            path.write_bytes(bytes([*before[:-9], before[-9] ^ 1, *before[-8:]]))
            shutil.rmtree(target, ignore_errors=True)
            try:
                assert not installed(url), path.name
                assert path.suffix == ".whl", "the others are refused before a host hears of them"
            except ToolError:
                assert path.suffix != ".whl"
            path.write_bytes(before)
        assert len({*files} - not_read) == 5
        assert installed(url)
