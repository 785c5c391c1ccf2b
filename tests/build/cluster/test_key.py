"""`--key`: what the wheelhouse has is signed, fresh, and comes from it, or no host hears of it."""

from __future__ import annotations

import platform
import sys
import time
from pathlib import Path

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from build import cli
from build.cli import guarded, only
from build.errors import ClaimError
from build.wheelhouse import signing
from ci.cluster.app import install
from ci.cluster.lock import Request, lock
from docs.bench.wheelhouse import write_release
from tests.build.wheelhouse.conftest import served


def _key(path: Path) -> tuple[Path, Path]:
    """Write a key and its public half."""
    key = Ed25519PrivateKey.generate()
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    public = path.with_suffix(".pub")
    public.write_text(signing.PublicKey(key.public_key()).pem)
    return path, public


def test_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
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
    file, house = tmp_path / "pylock.toml", tmp_path / "house"

    def locked(url: str) -> int:
        asked = Request(("multiworld-torch-overlay",), (f"{url}/simple",), key=str(public))
        words = [msgspec.json.encode(asked).decode(), python, platform.machine(), "2.39", str(file)]
        return guarded(only(lock), words)

    with served(house) as (url, _):
        assert locked(url) == 0, capsys.readouterr().err
        assert "9.1.0" in file.read_text()
        words = ["multiworld-torch-overlay", "--hosts", "a", "--index", f"{url}/simple", "--key", str(other)]
        assert guarded(only(install), words) == ClaimError.exit_code
        assert "is not signed by key" in capsys.readouterr().err
        for path in [*(tmp_path / "newer").glob("simple/*/*"), *(tmp_path / "newer").glob("files/*")]:
            (house / path.relative_to(tmp_path / "newer")).write_bytes(path.read_bytes())
        assert locked(url) == ClaimError.exit_code
        assert "would come from another index" in capsys.readouterr().err
