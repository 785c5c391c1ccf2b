"""Sign statements with the identity that a CI system gives its jobs, by sigstore, and check such signatures.

Instead of a key there are a certificate and an entry in a public log; the provenance of PEP 740 carries both. Not
verified against the real service: the tests have a certificate authority and logs of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from build.errors import ClaimError, EnvironmentUnfitError, UsageError
from build.wheelhouse import attestation
from build.wheelhouse.attestation import Attestation


def vouched(signed: Attestation, identity: str, issuer: str, root: Path | None) -> str:
    """Check that an identity signed, by sigstore's certificates and logs, and return who it was, in words.

    Args:
        root: file with the certificates and keys of sigstore; None: those that it serves now.

    Raises:
        ClaimError: it did not.
        UsageError: the file has something else.
        EnvironmentUnfitError: sigstore is not installed, or cannot be reached.
    """
    try:
        from sigstore.errors import Error, NetworkError, TUFError
        from sigstore.models import Bundle, TrustedRoot
        from sigstore.verify import Verifier, policy
    except ModuleNotFoundError as error:
        what = f"a signature cannot be checked: {error.name} is not installed"
        raise EnvironmentUnfitError(what, remedy="`nox -s verify -- --identity …` and `ci/install` do it") from None
    try:
        verifier = Verifier(trusted_root=TrustedRoot.from_file(str(root))) if root else Verifier.production()
    except (TUFError, NetworkError) as error:
        remedy = "name a copy of its trusted_root.json: --trusted-root FILE"
        raise EnvironmentUnfitError(f"sigstore's certificates cannot be fetched: {error}", remedy=remedy) from None
    except (Error, ValueError) as error:
        what = f"{root} has no certificates of sigstore: {error}"
        raise UsageError(what, remedy="name its trusted_root.json") from None
    believed = policy.Identity(identity=identity, issuer=issuer)
    try:
        verifier.verify_dsse(Bundle.from_json(attestation.bundle(signed)), believed)
    except (Error, KeyError, TypeError, ValueError) as error:
        remedy = "do not use the wheel, or name the right --identity and --issuer"
        raise ClaimError(f"it is not signed by {identity}: {error}", remedy=remedy) from None
    return f"by {identity}, for whom {issuer} vouched"


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
            yield lambda made: attestation.decode(signer.sign_dsse(Statement(made)).to_json().encode(), "its answer")
    except Error as error:
        raise _unfit(str(error)) from None


def _unfit(reason: str) -> EnvironmentUnfitError:
    return EnvironmentUnfitError(
        f"the provenance cannot be signed by sigstore: {reason}",
        cause="sigstore signs in CI jobs that may ask for an identity (GitHub: `permissions: id-token: write`)",
        remedy="run `nox -s wheelhouse -- --sigstore` in such a job, or sign with a key: --key FILE",
    )
