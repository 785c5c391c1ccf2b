"""Sign statements with an ed25519 key, and check such signatures: DSSE envelopes.

A key proves who signed only to those who got its public half by another way than the wheelhouse.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)
from securesystemslib.dsse import Envelope
from securesystemslib.exceptions import VerificationError
from securesystemslib.signer import CryptoSigner, Key, Signature, SSlibKey

from build.errors import ClaimError, UsageError

#: What a DSSE envelope with an in-toto statement says its payload is.
PAYLOAD_TYPE = "application/vnd.in-toto+json"
_MAKE = "make one: `openssl genpkey -algorithm ed25519 -out key.pem`"


@dataclass(frozen=True, slots=True)
class PrivateKey:
    """A signing key; `public` is its public half as PEM."""

    signer: CryptoSigner
    public: bytes

    @property
    def keyid(self) -> str:
        return str(self.signer.public_key.keyid)

    def sign(self, payload: bytes) -> Envelope:
        """Return an envelope with `payload`; ed25519 gives the same signature each time."""
        envelope = Envelope(payload, PAYLOAD_TYPE, {})
        envelope.sign(self.signer)
        return envelope


def private_key(path: Path) -> PrivateKey:
    """Read an ed25519 key without a password from a PEM file.

    Raises:
        UsageError: `path` holds no such key.
    """
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise UsageError(f"--key {path} is not a private key that can be read: {error}", remedy=_MAKE) from None
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(f"--key {path} is not an ed25519 key", cause=type(key).__name__, remedy=_MAKE)
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return PrivateKey(CryptoSigner(key), public)


def public_key(path: Path) -> Key:
    """Read an ed25519 public key from a PEM file.

    Raises:
        UsageError: `path` holds no such key.
    """
    try:
        return parse_public(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        remedy = "name the public half: `openssl pkey -in key.pem -pubout`"
        raise UsageError(f"--key {path} is not a public ed25519 key: {error}", remedy=remedy) from None


def parse_public(pem: bytes) -> Key:
    """Return the public key in `pem`; raise ValueError for anything else."""
    key = load_pem_public_key(pem)
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError(f"{type(key).__name__} is not an ed25519 key")  # noqa: TRY004 - the text is wrong, not a type
    return SSlibKey.from_crypto(key)


def check(statement: bytes, signature: bytes, keyid: str, key: Key) -> None:
    """Check the signature over a statement.

    Raises:
        ClaimError: it was not made with `key` over exactly these bytes.
    """
    envelope = Envelope(statement, PAYLOAD_TYPE, {keyid: Signature(keyid, signature.hex())})
    try:
        envelope.verify([key], 1)
    except VerificationError:
        raise ClaimError(
            f"the provenance is not signed by key {key.keyid[:16]}…",
            cause=f"its signature names key {keyid[:16]}…" if keyid != key.keyid else "statement or signature changed",
            remedy="do not use the wheel, or name the right public key",
        ) from None
