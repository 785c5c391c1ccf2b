"""The signed list: every exchanged file, an old list and an expired one are seen; no other index can outbid it."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from functools import partial
from pathlib import Path

import pytest
import uv
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from build import cli
from build.errors import ClaimError
from build.wheelhouse import attestation, trust
from build.wheelhouse.publish import Request, publish
from build.wheelhouse.signer import Signer
from docs.bench.wheelhouse import write_release
from tests.build.wheelhouse.conftest import served
from tests.build.wheelhouse.test_install import OWN, call


@pytest.fixture
def key(tmp_path: Path) -> Path:
    """The private key; `public.pem` beside it is its other half."""
    made = Ed25519PrivateKey.generate()
    place = tmp_path / "key.pem"
    place.write_bytes(made.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (tmp_path / "public.pem").write_text(attestation.PublicKey(made.public_key()).pem)
    return place


@pytest.fixture
def house(dist: Path, key: Path) -> Path:
    """A wheelhouse that is signed."""
    assert cli.main(["wheelhouse", "--dist", str(dist), "--key", str(key)]) == 0
    return dist / "wheelhouse"


@pytest.fixture
def public(key: Path) -> Signer:
    return Signer(str(key.with_name("public.pem")))


def verify(house: Path, key: Path) -> int:
    return cli.main(["verify", str(house), "--key", str(key.with_name("public.pem"))])


def test_every_file_in_turn(house: Path, key: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify(house, key) == 0
    files = [path for path in house.rglob("*") if path.is_file()]
    assert len(files) > 20
    for path in files:
        before, name = path.read_bytes(), path.relative_to(house).as_posix()
        path.unlink()  # a wheel is a link to the one in dist/
        assert verify(house, key) != 0, f"{name} is missing"
        for changed in (bytes([*before[:-9], before[-9] ^ 1, *before[-8:]]), before + b"\n "):
            path.write_bytes(changed)
            status, said = verify(house, key), capsys.readouterr().err
            # Blanks behind the signed list say nothing, so they may stand there.
            assert status == ClaimError.exit_code or (name == trust.NAME and changed.endswith(b"\n ")), name
            assert name == trust.NAME or f"{name}: other content" in said
        path.write_bytes(before)
    (house / "files" / "more.whl").write_bytes(b"")
    (house / "index.html").rename(house / "other")
    (house / "index.html").symlink_to("other")
    assert verify(house, key) == ClaimError.exit_code
    said = capsys.readouterr().err
    assert "files/more.whl: not listed" in said
    assert "index.html: other content" in said


def test_another_signer_and_nobody(house: Path, dist: Path, key: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", str(house)]) == 0
    assert "a key that came with it" in capsys.readouterr().out
    other = partial(attestation.sign, key=Ed25519PrivateKey.generate())
    publish(Request((dist / "9.1.0",), house, attest=other))
    assert verify(house, key) == ClaimError.exit_code
    assert "is not signed by key" in capsys.readouterr().err
    publish(Request((dist / "9.1.0",), house))
    assert verify(house, key) == ClaimError.exit_code
    assert "it is not signed, and must be by key" in capsys.readouterr().err
    # The signature of something else.
    wheel = next(house.glob("files/*.whl"))
    shutil.copy(f"{wheel}.provenance", house / trust.NAME)
    assert cli.main(["verify", str(house)]) == ClaimError.exit_code
    assert "is not the list of a wheelhouse" in capsys.readouterr().err


def test_an_old_and_an_expired_one(
    house: Path, dist: Path, key: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old = shutil.copytree(house, dist.parent / "old")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(int(time.time()) + 5))
    again = ["wheelhouse", "--dist", str(dist), "--key", str(key)]
    assert cli.main(again) == 0
    assert verify(house, key) == 0
    shutil.rmtree(house)
    old.rename(house)
    assert verify(house, key) == ClaimError.exit_code
    said = capsys.readouterr().err
    assert "is older than it was: serial number" in said
    assert "wheelhouses.json" in said
    state = Path(os.environ["XDG_STATE_HOME"], "multiworld", "wheelhouses.json")
    state.write_text("damaged")
    assert verify(house, key) == ClaimError.exit_code
    assert "wheelhouses.json is damaged" in capsys.readouterr().err
    state.unlink()
    monkeypatch.setenv("SOURCE_DATE_EPOCH", str(int(time.time()) - 172_800))
    assert cli.main([*again, "--days", "1"]) == 0
    assert verify(house, key) == ClaimError.exit_code
    assert "its list has expired, on" in capsys.readouterr().err


def test_over_http(house: Path, public: Signer) -> None:
    with served(house) as (url, asked):
        for address in (url, f"{url}/simple/"):
            index, who = trust.trusted(address, public)
            assert sorted(index.projects) == ["multiworld-torch-overlay", "torch"]
            assert who == f"by {public.name.removeprefix('key ')}"
        assert asked == [f"/{trust.NAME}"] * 2
        (house / trust.NAME).unlink()
        with pytest.raises(ClaimError, match=f"has no {trust.NAME}, so nobody vouches"):
            trust.trusted(url, public)
        with pytest.raises(ClaimError, match="so nobody vouches"):
            trust.trusted(str(house), public)


def test_no_other_index_outbids_it(house: Path, public: Signer, tmp_path: Path) -> None:
    """The other one has newer wheels of the same names, and would win with the strategy of pip."""
    write_release(tmp_path / "more", "99.0.0", (OWN,))
    publish(Request((tmp_path / "more",), tmp_path / "other"))
    (tmp_path / "wanted").write_text("multiworld-torch-overlay\n")
    index, _ = trust.trusted(str(house), public)
    with served(house) as (ours, _), served(tmp_path / "other") as (theirs, _):

        def resolved(options: list[str]) -> str:
            command = [uv.find_uv_bin(), "pip", "compile", "-q", "--no-cache", "--generate-hashes", *options]
            done = call(*command, "--python", sys.executable, tmp_path / "wanted")
            assert done.returncode == 0, done.stderr
            return done.stdout

        urls = ["--index", f"{ours}/simple", "--default-index", f"{theirs}/simple", "--index-strategy"]
        good = resolved([*urls, "first-index"])
        outbid = resolved([*urls, "unsafe-best-match"])
    assert "multiworld-torch-overlay==9.1.0" in good
    assert "multiworld-torch-overlay==99.0.0" in outbid
    name = "multiworld-torch-overlay"
    index.check(str(house), public, {name: re.findall("sha256:(.+)", good), "numpy": ["00"]})
    with pytest.raises(ClaimError, match=f"{name} would come from another index"):
        index.check(str(house), public, {name: re.findall("sha256:(.+)", outbid)})


def test_large_wheels_are_served_elsewhere(dist: Path, key: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small, *_, large = sorted((dist / "9.1.0").glob("*.whl"), key=lambda path: path.stat().st_size)
    monkeypatch.setattr("build.wheelhouse.publish.LARGE", large.stat().st_size - 1)
    (dist / "assets").mkdir()
    with served(dist / "assets") as (assets, _), served(dist) as (url, _):
        assert cli.main(["wheelhouse", "--dist", str(dist), "--key", str(key), "--assets", f"{assets}/"]) == 0
        house = dist / "wheelhouse"
        there = {path.name for path in house.glob("files/*.whl")}
        assert small.name in there
        assert large.name not in there
        assert verify(house, key) == 0
        for path in (large, house / "files" / f"{large.name}.metadata"):
            shutil.copy(path, dist / "assets")
        listed = {item["file"]: item["sha256"] for item in json.loads((house / trust.LIST).read_bytes())["wheels"]}
        assert f"{assets}/{large.name.replace('+', '%2B')}" in listed
        assert set(trust.trusted(str(house), Signer())[0].wheels.values()) == set(listed.values())
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--no-deps",
            "--target",
            str(dist / "there"),
            "--no-cache-dir",
        ]
        done = call(*command, "--index-url", f"{url}/wheelhouse/simple/", large.name.partition("-")[0])
    assert done.returncode == 0, done.stderr
    assert f'href="{assets}/{large.name.replace("+", "%2B")}' in (house / "index.html").read_text()
