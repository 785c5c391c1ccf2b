"""Signatures of sigstore, made by a service in miniature and checked by the real library."""

from __future__ import annotations

import base64
import json
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from build import cli
from build.errors import ClaimError, EnvironmentUnfitError, UsageError
from build.wheelhouse import attestation, trust
from build.wheelhouse.attestation import Attestation, Publisher
from build.wheelhouse.publish import Request, publish
from build.wheelhouse.signer import ISSUER, Signer, named
from ci.cluster import lock
from tests.build.wheelhouse.conftest import served
from tests.build.wheelhouse.sigstore_service import Service

ME = "https://github.com/me/it/.github/workflows/wheels.yml@refs/tags/v1"
STATEMENT = b'{"_type": "https://in-toto.io/Statement/v1"}'


@pytest.fixture(scope="module")
def service() -> Service:
    return Service()


@pytest.fixture
def root(service: Service, tmp_path: Path) -> Path:
    """What a reader trusts."""
    path = tmp_path / "trusted_root.json"
    path.write_text(service.trusted_root())
    return path


def attest(service: Service, identity: str = ME, issuer: str = ISSUER) -> Callable[[bytes], Attestation]:
    return lambda made: attestation.decode(service.bundle(made, identity, issuer).encode(), "it")


@pytest.fixture
def house(service: Service, dist: Path) -> Path:
    """A wheelhouse that a job has signed."""
    publish(Request((dist / "9.1.0",), dist / "house", attest=attest(service), signed_by="sigstore"))
    return dist / "house"


def test_a_wheelhouse_and_each_wheel(house: Path, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    believed = ("--identity", ME, "--trusted-root", str(root))
    assert cli.main(["verify", str(house), *believed]) == 0, capsys.readouterr().err
    for wheel in sorted(house.glob("files/*.whl")):
        for words in ((), ("--provenance", f"{wheel}{attestation.BUNDLE}")):
            # The wheels are made of nothing; claims before the first that a build would decide hold.
            cli.main(["verify", str(wheel), "--no-rebuild", *believed, *words])
            said = capsys.readouterr()
            assert f"ok: signature: by {ME}, for whom {ISSUER} vouched" in said.out, said.err
    assert cli.main(["verify", str(house)]) == 0
    assert "by sigstore, NOT CHECKED" in capsys.readouterr().out


def test_ci_install_takes_it_from_that_job_alone(house: Path, root: Path, tmp_path: Path) -> None:
    """As the lookup of the role asks, with the hosts' kind."""

    def locked(identity: str) -> str:
        signer = Signer(identity=identity, trusted_root=str(root))
        asked = lock.Request(("multiworld-torch-overlay",), (f"{url}/simple",), signer=signer)
        kind = "Python {}.{}, {}, glibc 2.39".format(*sys.version_info[:2], platform.machine())
        folder = tmp_path / signer.identity.replace("/", "_")
        folder.mkdir()
        (folder / lock.REQUEST).write_bytes(msgspec.json.encode(asked))
        return lock.lock(str(folder), kind).read_text()

    with served(house) as (url, _):
        assert "9.1.0" in locked(ME)
        with pytest.raises(ClaimError, match=r"it is not signed by https://github\.com/you"):
            locked(ME.replace("me", "you"))


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"identity": ME.replace("v1", "v2")}, "it is not signed by"),
        ({"issuer": "https://accounts.example"}, "it is not signed by"),
        ({"key": "key"}, "it is by sigstore, and must be by key"),
    ],
)
def test_another_signer(
    house: Path, root: Path, tmp_path: Path, other: dict[str, str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if "key" in other:
        other = {"key": str(tmp_path / "key.pem")}
        signed = attestation.sign(STATEMENT, Ed25519PrivateKey.generate())
        Path(other["key"]).write_text(signed.public)
    believed = {"identity": ME, "trusted-root": str(root)} if "key" not in other else {}
    options = [word for name, value in (believed | other).items() for word in (f"--{name}", value)]
    assert cli.main(["verify", str(house), *options]) == ClaimError.exit_code
    assert words in " ".join(capsys.readouterr().err.split())


def test_who_wants_a_job_takes_no_key_and_no_unsigned_one(root: Path) -> None:
    signer = Signer(identity=ME, trusted_root=str(root))
    for signed in (Attestation(STATEMENT), attestation.sign(STATEMENT, Ed25519PrivateKey.generate())):
        with pytest.raises(ClaimError, match=r"and must be by https://github\.com/me"):
            signer.vouches(signed)


def _changed(bundle: dict[str, Any], *keys: str | int) -> None:
    """Change one byte of what lies in base64 below `keys`."""
    *way, last = keys
    place: Any = bundle
    for key in way:
        place = place[key]
    data = bytearray(base64.b64decode(place[last]))
    data[len(data) // 2] ^= 1
    place[last] = base64.b64encode(data).decode()


_ENTRY = ("verificationMaterial", "tlogEntries", 0)


@pytest.mark.parametrize(
    "keys",
    [
        ("dsseEnvelope", "payload"),
        ("dsseEnvelope", "signatures", 0, "sig"),
        ("verificationMaterial", "certificate", "rawBytes"),
        (*_ENTRY, "canonicalizedBody"),
        (*_ENTRY, "inclusionPromise", "signedEntryTimestamp"),
        (*_ENTRY, "inclusionProof", "rootHash"),
    ],
)
def test_one_byte_of_each_part(service: Service, root: Path, keys: tuple[str | int, ...]) -> None:
    signer = Signer(identity=ME, trusted_root=str(root))
    bundle = json.loads(service.bundle(STATEMENT, ME, ISSUER))
    assert signer.vouches(attestation.decode(json.dumps(bundle).encode(), "it"))
    _changed(bundle, *keys)
    with pytest.raises(ClaimError, match="it is not signed by"):
        signer.vouches(attestation.decode(json.dumps(bundle).encode(), "it"))


def test_another_service_and_none(house: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of another authority and log, a file that is no such thing, and two signers at once."""
    words = ["verify", str(house), "--identity", ME, "--trusted-root", str(tmp_path / "other")]
    assert cli.main(words) == 2
    (tmp_path / "other").write_text(Service().trusted_root())
    assert cli.main(words) == ClaimError.exit_code
    (tmp_path / "other").write_text("{}")
    assert cli.main(words) == 2
    assert cli.main([*words, "--key", str(tmp_path / "other")]) == 2
    said = capsys.readouterr().err
    assert "has no certificates of sigstore" in said
    assert "name two signers" in said


@pytest.mark.parametrize("options", [("https://example.org", False), (ISSUER, True)])
def test_an_issuer_or_a_root_without_an_identity_is_refused(tmp_path: Path, options: tuple[str, bool]) -> None:
    issuer, with_root = options
    with pytest.raises(UsageError, match="are for --identity"):
        named(None, "", issuer, tmp_path if with_root else None)


def test_the_form_of_pep_740(service: Service) -> None:
    """What sigstore's specification of the bundle and PEP 740 call by other names; nothing is lost between them."""
    bundle = json.loads(service.bundle(STATEMENT, ME, ISSUER))
    bundle["verificationMaterial"]["timestampVerificationData"] = {"rfc3161Timestamps": [{"signedTimestamp": "AAAA"}]}
    made = attestation.decode(json.dumps(bundle).encode(), "it")
    assert (made.statement, made.publisher) == (STATEMENT, Publisher.SIGSTORE)
    (listed,) = json.loads(attestation.encode(made))["attestation_bundles"]
    assert listed["publisher"] == {"kind": "GitHub", "repository": "me/it", "workflow": "wheels.yml"}
    (item,) = listed["attestations"]
    assert item["version"] == 1
    assert item["verification_material"]["certificate"] == bundle["verificationMaterial"]["certificate"]["rawBytes"]
    assert item["verification_material"]["transparency_entries"] == bundle["verificationMaterial"]["tlogEntries"]
    assert item["envelope"]["statement"] == base64.b64encode(STATEMENT).decode()
    assert attestation.decode(attestation.encode(made), "it") == made
    assert json.loads(attestation.bundle(made)) == bundle


def test_the_library_signs_such_statements(dist: Path) -> None:
    """The real service is not in reach; the library takes the statements that would go there."""
    from sigstore.dsse import Statement

    publish(Request((dist / "9.1.0",), dist / "house"))
    for path in dist.glob("house/files/*.slsa.json"):
        Statement(path.read_bytes())
    Statement(trust.make({"files/x": "0" * 64}, trust.life(1)))


def test_where_there_is_no_ci_job(
    dist: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With sigstore installed or without: said plainly, and nothing is published."""
    for name in ("GITHUB_ACTIONS", "GITLAB_CI", "CIRCLECI", "BUILDKITE"):
        monkeypatch.delenv(name, raising=False)
    assert cli.main(["wheelhouse", "--dist", str(dist), "--sigstore"]) == EnvironmentUnfitError.exit_code
    assert "cannot be signed by sigstore" in capsys.readouterr().err
    assert not (dist / "wheelhouse").exists()
