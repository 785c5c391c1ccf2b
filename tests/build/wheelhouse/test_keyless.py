"""Sigstore's answer is taken over; without one, a message says so. The service is not in reach."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from build import cli
from build.errors import EnvironmentUnfitError
from build.wheelhouse import attestation
from build.wheelhouse.attestation import Publisher
from build.wheelhouse.keyless import from_bundle

STATEMENT = b'{"_type": "https://in-toto.io/Statement/v1"}'
#: As sigstore's specification of the bundle, version 0.3, has it.
BUNDLE = {
    "mediaType": "application/vnd.dev.sigstore.bundle.v0.3+json",
    "verificationMaterial": {
        "certificate": {"rawBytes": "Y2VydGlmaWNhdGU="},
        "tlogEntries": [{"logIndex": "7", "kindVersion": {"kind": "dsse", "version": "0.0.1"}}],
        "timestampVerificationData": {},
    },
    "dsseEnvelope": {
        "payload": base64.b64encode(STATEMENT).decode(),
        "payloadType": "application/vnd.in-toto+json",
        "signatures": [{"sig": "c2lnbmVk"}],
    },
}


def test_the_form_of_pep_740() -> None:
    made = from_bundle(json.dumps(BUNDLE))
    assert (made.statement, made.publisher, made.signature) == (STATEMENT, Publisher.SIGSTORE, b"signed")
    (bundle,) = json.loads(attestation.encode(made))["attestation_bundles"]
    (item,) = bundle["attestations"]
    assert item["version"] == 1
    assert item["verification_material"] == {
        "certificate": "Y2VydGlmaWNhdGU=",
        "transparency_entries": [{"logIndex": "7", "kindVersion": {"kind": "dsse", "version": "0.0.1"}}],
    }
    assert item["envelope"] == {"statement": base64.b64encode(STATEMENT).decode(), "signature": "c2lnbmVk"}
    assert attestation.decode(attestation.encode(made), "it") == made


@pytest.mark.parametrize(
    "bundle", ["", "{}", json.dumps({**BUNDLE, "dsseEnvelope": {"payload": "", "signatures": []}})]
)
def test_another_form(bundle: str) -> None:
    with pytest.raises(EnvironmentUnfitError, match="another form"):
        from_bundle(bundle)


def test_where_there_is_no_ci_job(
    dist: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With sigstore installed or without: said plainly, and nothing is published."""
    for name in ("GITHUB_ACTIONS", "GITLAB_CI", "CIRCLECI", "BUILDKITE"):
        monkeypatch.delenv(name, raising=False)
    assert cli.main(["wheelhouse", "--dist", str(dist), "--sigstore"]) == EnvironmentUnfitError.exit_code
    assert "cannot be signed by sigstore" in capsys.readouterr().err
    assert not (dist / "wheelhouse").exists()
