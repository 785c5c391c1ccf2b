"""Sign statements with an ed25519 key, and check such signatures, over what a DSSE envelope signs.

A key proves who signed only to those who got its public half by another way than the wheelhouse.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

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
