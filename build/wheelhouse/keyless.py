"""Sign statements with the identity that a CI system gives its jobs, by sigstore: no key, and an entry in a public log.

Not verified against the real service, which was not in reach; what it answers is taken over as PEP 740 asks.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from build.errors import EnvironmentUnfitError
from build.wheelhouse.attestation import Attestation, Publisher


def from_bundle(bundle: bytes | str) -> Attestation:
    """Return the attestation in a bundle of sigstore (version 0.3), as PEP 740 takes it over.

    Raises:
        EnvironmentUnfitError: the bundle has another form.
    """
    try:
        found = msgspec.json.decode(bundle)
        (signature,) = found["dsseEnvelope"]["signatures"]
        statement = base64.b64decode(found["dsseEnvelope"]["payload"], validate=True)
        signed = base64.b64decode(signature["sig"], validate=True)
        given = found["verificationMaterial"]
        material = {
            "certificate": given["certificate"]["rawBytes"],
            "transparency_entries": list(given["tlogEntries"]),
        }
    except (msgspec.DecodeError, LookupError, TypeError, ValueError) as error:
        raise EnvironmentUnfitError(
            f"sigstore's answer has another form than this version of the project knows: {error!r}",
            remedy="sign with a key: --key FILE",
        ) from None
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
