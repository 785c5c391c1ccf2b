"""The file that the index names as a wheel's provenance: a statement with its signature, in the form of PEP 740.

PEP 740 knows signatures by sigstore only. With a plain key, `verification_material` has the public key where sigstore
has a certificate; without a key, the signature is empty and the publisher is `unsigned`. A key signs over what a DSSE
envelope signs, and proves who signed only to those who got its public half by another way than the wheelhouse.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from build import record
from build.errors import ClaimError, UsageError

#: What a DSSE envelope with an in-toto statement says its payload is.
PAYLOAD_TYPE = "application/vnd.in-toto+json"
_MAKE = "make one: `openssl genpkey -algorithm ed25519 -out key.pem`"


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A key that checks signatures."""

    key: Ed25519PublicKey

    @property
    def pem(self) -> str:
        return self.key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()

    @property
    def keyid(self) -> str:
        """SHA-256 of the key in its DER form: what `openssl pkey -pubin -outform DER | sha256sum` prints."""
        return hashlib.sha256(self.key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()

    def check(self, statement: bytes, signature: bytes) -> None:
        """Raise ClaimError unless this key signed exactly `statement`."""
        try:
            self.key.verify(signature, signed_bytes(statement))
        except InvalidSignature:
            remedy = "do not use the wheel, or name the right public key"
            raise ClaimError(f"the provenance is not signed by key {self.keyid}", remedy=remedy) from None


def signed_bytes(statement: bytes) -> bytes:
    """Return what is signed for a statement: DSSE's encoding of it and its type."""
    kind = PAYLOAD_TYPE.encode()
    return b"DSSEv1 %d %b %d %b" % (len(kind), kind, len(statement), statement)


def private_key(path: Path) -> Ed25519PrivateKey:
    """Read an ed25519 key without a password from a PEM file.

    Raises:
        UsageError: `path` holds no such key.
    """
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UsageError(f"{path} is not a private key that can be read: {error}", remedy=_MAKE) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(f"{path} is not an ed25519 key", cause=type(key).__name__, remedy=_MAKE)
    return key


def public_key(path: Path) -> PublicKey:
    """Read an ed25519 public key from a PEM file.

    Raises:
        UsageError: `path` holds no such key.
    """
    try:
        return parse_public(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        remedy = "name the public half: `openssl pkey -in key.pem -pubout`"
        raise UsageError(f"{path} is not a public ed25519 key: {error}", remedy=remedy) from None


def parse_public(pem: bytes) -> PublicKey:
    key = load_pem_public_key(pem)
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError(f"{type(key).__name__} is not an ed25519 key")  # noqa: TRY004 - the text is wrong, not a type
    return PublicKey(key)


#: Behind the name of a wheel: the object of PEP 740, and the statement alone, to be read by people.
SUFFIX, STATEMENT = ".provenance", ".slsa.json"
#: Likewise what other programs check: signed with a key, and by sigstore.
ENVELOPE, BUNDLE = ".dsse.json", ".sigstore.json"
_BUNDLE = "application/vnd.dev.sigstore.bundle.v0.3+json"
#: What PEP 740 does not take over, and a log of sigstore without times of its own needs.
_TIMES = "timestamp_verification_data"
_GITHUB = "GitHub"


class Publisher(Enum):
    """The signer of a statement."""

    SIGSTORE = "sigstore"
    KEY = "key"
    UNSIGNED = "unsigned"


class Attestation(msgspec.Struct, frozen=True):
    """A statement and who vouches for it.

    Attributes:
        statement: the exact bytes that are signed.
        signature: empty for `Publisher.UNSIGNED`.
        keyid: id of the plain key.
        material: what checks the signature: the public half of the plain key (`public_key`, PEM), or sigstore's
            certificate and entries of its log.
    """

    statement: bytes
    publisher: Publisher = Publisher.UNSIGNED
    signature: bytes = b""
    keyid: str = ""
    material: dict[str, Any] = {}

    @property
    def public(self) -> str:
        return str(self.material.get("public_key", ""))


def sign(statement: bytes, key: Ed25519PrivateKey) -> Attestation:
    """Return `statement` signed with `key`; ed25519 gives the same signature each time."""
    public = PublicKey(key.public_key())
    signature = key.sign(signed_bytes(statement))
    return Attestation(statement, Publisher.KEY, signature, public.keyid, {"public_key": public.pem})


def encode(item: Attestation) -> bytes:
    signed = {"statement": _base64(item.statement), "signature": _base64(item.signature)}
    attestation = {"version": 1, "verification_material": item.material, "envelope": signed}
    publisher = _job(item) or {"kind": item.publisher.value} | ({"keyid": item.keyid} if item.keyid else {})
    return record.encode(
        {"version": 1, "attestation_bundles": [{"publisher": publisher, "attestations": [attestation]}]}
    )


def _job(item: Attestation) -> dict[str, str]:
    """Return the publisher as PEP 740 knows it, from the certificate of a workflow of GitHub's; empty for others."""
    if item.publisher is not Publisher.SIGSTORE:
        return {}
    certificate = x509.load_der_x509_certificate(base64.b64decode(item.material["certificate"]))
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    uris = " ".join(names.get_values_for_type(x509.UniformResourceIdentifier))
    found = re.fullmatch(r"https://github\.com/([^/]+/[^/]+)/\.github/workflows/([^/@]+)@\S+", uris)
    return {"kind": _GITHUB, "repository": found[1], "workflow": found[2]} if found else {}


def decode(data: bytes, origin: str) -> Attestation:
    """Return the attestation in an object of PEP 740, a bundle of sigstore, a DSSE envelope, or a bare statement.

    Raises:
        ClaimError: `data`, which came from `origin`, is none of these.
    """
    try:
        whole = msgspec.json.decode(data)
        if isinstance(whole, dict) and "attestation_bundles" in whole:
            return _from_object(whole)
        if isinstance(whole, dict) and "dsseEnvelope" in whole:
            return _from_bundle(whole)
        if isinstance(whole, dict) and "payload" in whole:
            signed = whole["signatures"][0]
            kept = (base64.b64decode(signed["sig"], validate=True), str(signed["keyid"]))
            return Attestation(base64.b64decode(whole["payload"], validate=True), Publisher.KEY, *kept)
    except (msgspec.DecodeError, LookupError, TypeError, ValueError, AttributeError) as error:
        remedy = "use the file that `nox -s wheelhouse` wrote beside the wheel"
        raise ClaimError(f"{origin} is not a provenance: {error}", remedy=remedy) from None
    return Attestation(data)


def _from_object(whole: dict[str, Any]) -> Attestation:
    bundle = whole["attestation_bundles"][0]
    first = bundle["attestations"][0]
    return Attestation(
        statement=base64.b64decode(first["envelope"]["statement"], validate=True),
        publisher=Publisher.SIGSTORE if (kind := bundle["publisher"].get("kind")) == _GITHUB else Publisher(kind),
        signature=base64.b64decode(first["envelope"]["signature"], validate=True),
        keyid=str(bundle["publisher"].get("keyid", "")),
        material=dict(first["verification_material"]),
    )


def _from_bundle(whole: dict[str, Any]) -> Attestation:
    (signature,) = whole["dsseEnvelope"]["signatures"]
    statement, signed = (
        base64.b64decode(text, validate=True) for text in (whole["dsseEnvelope"]["payload"], signature["sig"])
    )
    given = whole["verificationMaterial"]
    material = {"certificate": given["certificate"]["rawBytes"], "transparency_entries": list(given["tlogEntries"])}
    if times := given.get("timestampVerificationData"):
        material[_TIMES] = times
    return Attestation(statement, Publisher.SIGSTORE, signed, material=material)


def bundle(item: Attestation) -> bytes:
    given = {"certificate": {"rawBytes": item.material["certificate"]}}
    given["tlogEntries"] = item.material["transparency_entries"]
    if _TIMES in item.material:
        given["timestampVerificationData"] = item.material[_TIMES]
    signatures = [{"sig": _base64(item.signature)}]
    enveloped = {"payload": _base64(item.statement), "payloadType": PAYLOAD_TYPE, "signatures": signatures}
    return record.encode({"mediaType": _BUNDLE, "verificationMaterial": given, "dsseEnvelope": enveloped})


def envelope(item: Attestation) -> bytes:
    signatures = [{"keyid": item.keyid, "sig": _base64(item.signature)}]
    return record.encode({"payload": _base64(item.statement), "payloadType": PAYLOAD_TYPE, "signatures": signatures})


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
