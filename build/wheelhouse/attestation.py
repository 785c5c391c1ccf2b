"""The file that the index names as a wheel's provenance: a statement with its signature, in the form of PEP 740.

PEP 740 knows signatures by sigstore only. With a plain key, `verification_material` has the public key where sigstore
has a certificate; without a key, the signature is empty and the publisher is `unsigned`.
"""

from __future__ import annotations

import base64
import binascii
from enum import Enum
from typing import Any

import msgspec

from build.errors import ClaimError
from build.wheelhouse.signing import PAYLOAD_TYPE, PrivateKey

#: Behind the name of a wheel: the object of PEP 740, and the statement alone, to be read by people.
SUFFIX, STATEMENT, ENVELOPE = ".provenance", ".slsa.json", ".dsse.json"


class Publisher(Enum):
    """The signer of a statement."""

    SIGSTORE = "sigstore"
    KEY = "key"
    UNSIGNED = "unsigned"


class _Envelope(msgspec.Struct, frozen=True):
    statement: str
    signature: str


class _Attestation(msgspec.Struct, frozen=True):
    version: int
    verification_material: dict[str, Any]
    envelope: _Envelope


class _Bundle(msgspec.Struct, frozen=True):
    publisher: dict[str, Any]
    attestations: tuple[_Attestation, ...]


class _Object(msgspec.Struct, frozen=True):
    """The whole file."""

    version: int
    attestation_bundles: tuple[_Bundle, ...]


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


def sign(statement: bytes, key: PrivateKey) -> Attestation:
    """Return `statement` signed with `key`."""
    return Attestation(statement, Publisher.KEY, key.sign(statement), key.public.keyid, {"public_key": key.public.pem})


def encode(item: Attestation) -> bytes:
    """Return the object of PEP 740 with one attestation."""
    envelope = _Envelope(_base64(item.statement), _base64(item.signature))
    publisher = {"kind": item.publisher.value} | ({"keyid": item.keyid} if item.keyid else {})
    bundle = _Bundle(publisher, (_Attestation(1, item.material, envelope),))
    return msgspec.json.format(msgspec.json.encode(_Object(1, (bundle,))), indent=2) + b"\n"


def decode(data: bytes, origin: str) -> Attestation:
    """Return the attestation in an object of PEP 740, in a DSSE envelope, or in a bare statement.

    Raises:
        ClaimError: `data`, which came from `origin`, is none of these.
    """
    try:
        whole = msgspec.json.decode(data)
        if isinstance(whole, dict) and "attestation_bundles" in whole:
            return _from_object(msgspec.convert(whole, _Object))
        if isinstance(whole, dict) and "payload" in whole:
            signed = whole["signatures"][0]
            kept = (base64.b64decode(signed["sig"], validate=True), str(signed["keyid"]))
            return Attestation(base64.b64decode(whole["payload"], validate=True), Publisher.KEY, *kept)
    except (msgspec.DecodeError, msgspec.ValidationError, LookupError, TypeError, binascii.Error) as error:
        raise ClaimError(
            f"{origin} is not a provenance: {error}",
            cause="it is damaged, or something else",
            remedy="use the file that `nox -s wheelhouse` wrote beside the wheel",
        ) from None
    return Attestation(data)


def _from_object(whole: _Object) -> Attestation:
    bundle = whole.attestation_bundles[0]
    first = bundle.attestations[0]
    try:
        publisher = Publisher(bundle.publisher.get("kind"))
    except ValueError as error:
        raise LookupError(str(error)) from None
    return Attestation(
        statement=base64.b64decode(first.envelope.statement, validate=True),
        publisher=publisher,
        signature=base64.b64decode(first.envelope.signature, validate=True),
        keyid=str(bundle.publisher.get("keyid", "")),
        material=first.verification_material,
    )


def envelope(item: Attestation) -> bytes:
    """Return the DSSE envelope of a statement that is signed with a plain key."""
    whole = {
        "payload": _base64(item.statement),
        "payloadType": PAYLOAD_TYPE,
        "signatures": [{"keyid": item.keyid, "sig": _base64(item.signature)}],
    }
    return msgspec.json.format(msgspec.json.encode(whole), indent=2) + b"\n"


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()
