"""Sign statements with the identity that a CI system gives its jobs, by sigstore: no key, and an entry in a public log.

Not verified against the real service, which was not in reach; what it answers is taken over as PEP 740 asks.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from build.errors import EnvironmentUnfitError
from build.wheelhouse.attestation import Attestation, Publisher


class _Signature(msgspec.Struct, frozen=True):
    sig: str


class _Dsse(msgspec.Struct, frozen=True):
    payload: str
    signatures: tuple[_Signature, ...]


class _Certificate(msgspec.Struct, frozen=True, rename="camel"):
    raw_bytes: str


class _Material(msgspec.Struct, frozen=True, rename="camel"):
    certificate: _Certificate
    tlog_entries: tuple[dict[str, Any], ...]


class _Bundle(msgspec.Struct, frozen=True, rename="camel"):
    """The part of sigstore's bundle (version 0.3) that PEP 740 takes over."""

    verification_material: _Material
    dsse_envelope: _Dsse


def from_bundle(bundle: bytes | str) -> Attestation:
    """Return the attestation in a bundle of sigstore.

    Raises:
        EnvironmentUnfitError: the bundle has another form.
    """
    try:
        found = msgspec.json.decode(bundle, type=_Bundle)
        (signature,) = found.dsse_envelope.signatures
        statement = base64.b64decode(found.dsse_envelope.payload, validate=True)
        signed = base64.b64decode(signature.sig, validate=True)
    except (msgspec.DecodeError, binascii.Error, ValueError) as error:
        raise EnvironmentUnfitError(
            f"sigstore's answer has another form than this version of the project knows: {error}",
            remedy="sign with a key: --key FILE",
        ) from None
    material = {
        "certificate": found.verification_material.certificate.raw_bytes,
        "transparency_entries": list(found.verification_material.tlog_entries),
    }
    return Attestation(statement, Publisher.SIGSTORE, signed, material=material)


@contextmanager
def signing() -> Iterator[Callable[[bytes], Attestation]]:
    """Yield a function that signs statements as this CI job.

    Raises:
        EnvironmentUnfitError: sigstore is not installed, this is no CI job with an identity, or the service fails.
    """
    try:
        from sigstore.dsse import Statement
        from sigstore.errors import Error
        from sigstore.models import ClientTrustConfig
        from sigstore.oidc import IdentityToken, detect_credential
        from sigstore.sign import SigningContext
    except ModuleNotFoundError as error:
        raise _unfit(f"{error.name} is not installed") from None
    try:
        token = detect_credential()
        if token is None:
            raise _unfit("no CI system offers an identity here")
        with SigningContext.from_trust_config(ClientTrustConfig.production()).signer(IdentityToken(token)) as signer:
            yield lambda statement: from_bundle(signer.sign_dsse(Statement(statement)).to_json())
    except Error as error:
        raise _unfit(str(error)) from None


def _unfit(reason: str) -> EnvironmentUnfitError:
    return EnvironmentUnfitError(
        f"the provenance cannot be signed by sigstore: {reason}",
        cause="sigstore signs in CI jobs that may ask for an identity (GitHub: `permissions: id-token: write`)",
        remedy="run `nox -s wheelhouse -- --sigstore` in such a job, or sign with a key: --key FILE",
    )
