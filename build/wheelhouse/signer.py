"""The signer whom a reader believes: a key, an identity that sigstore has seen, or anybody.

By sigstore, the identity that a CI system gives its jobs signs: instead of a key there are a certificate and an entry
in a public log; the provenance of PEP 740 carries both. Not verified against the real service: the tests have a
certificate authority and logs of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from build.errors import ClaimError, EnvironmentUnfitError, UsageError
from build.wheelhouse import attestation
from build.wheelhouse.attestation import Attestation, Publisher

#: GitHub's: who tells sigstore which workflow a job belongs to.
ISSUER = "https://token.actions.githubusercontent.com"
Key = Annotated[Path | None, typer.Option(help="ed25519 public key (PEM) that must have signed")]
Identity = Annotated[str, typer.Option(help="who must have signed by sigstore: the URI of a workflow, or an address")]
Issuer = Annotated[str, typer.Option(help="who vouched for that identity to sigstore")]
TrustedRoot = Annotated[Path | None, typer.Option(help="sigstore's trusted_root.json, default what it serves now")]


class Signer(msgspec.Struct, frozen=True):
    """The signer who is believed; without a key and an identity anybody may, or nobody.

    Attributes:
        key: file of a public key.
        identity: the URI of a CI workflow or a mail address, as sigstore's certificate has it.
        issuer: who vouched for the identity.
        trusted_root: file with sigstore's certificates and logs; empty: fetched.
    """

    key: str = ""
    identity: str = ""
    issuer: str = ISSUER
    trusted_root: str = ""

    @property
    def name(self) -> str:
        """The signer for people; empty for anybody."""
        return f"key {attestation.public_key(Path(self.key)).keyid}" if self.key else self.identity

    def vouches(self, signed: Attestation) -> str:
        """Check a signature, and return who signed, in words.

        Raises:
            ClaimError: it is not that of the signer, or there is none.
            UsageError: it cannot be checked here.
        """
        if signed.publisher is Publisher.SIGSTORE:
            if self.identity:
                root = Path(self.trusted_root) if self.trusted_root else None
                return _vouched(signed, self.identity, self.issuer, root)
            if not self.key:
                return "by sigstore, NOT CHECKED: `--identity` names who must have signed"
        elif signed.publisher is Publisher.KEY and not self.identity:
            key = attestation.public_key(Path(self.key)) if self.key else _enclosed(signed)
            key.check(signed.statement, signed.signature)
            return f"by {key.keyid}{'' if self.key else ', a key that came with it: `--key` names the one you trust'}"
        elif not (self.key or self.identity):
            return "NOT SIGNED: anyone may have written the claims"
        found = {Publisher.UNSIGNED: "not signed", Publisher.KEY: "signed by a key", Publisher.SIGSTORE: "by sigstore"}
        raise ClaimError(f"it is {found[signed.publisher]}, and must be by {self.name}")


def named(key: Path | None, identity: str, issuer: str, trusted_root: Path | None) -> Signer:
    """Return the signer that the options of a command name."""
    if key and identity:
        raise UsageError("--key and --identity name two signers", remedy="name the one that signs")
    if not identity and (trusted_root or issuer != ISSUER):
        raise UsageError("--issuer and --trusted-root are for --identity", remedy="name who must have signed")
    if key:
        attestation.public_key(key)
    if trusted_root and not trusted_root.is_file():
        raise UsageError(f"--trusted-root {trusted_root}: no such file", remedy="name sigstore's trusted_root.json")
    root = str(trusted_root.resolve()) if trusted_root else ""
    return Signer(str(key.resolve()) if key else "", identity, issuer, root)


def _enclosed(signed: Attestation) -> attestation.PublicKey:
    try:
        return attestation.parse_public(signed.public.encode())
    except ValueError:
        raise UsageError(f"the public key {signed.keyid} is not at hand", remedy="name it: --key FILE") from None


def _vouched(signed: Attestation, identity: str, issuer: str, root: Path | None) -> str:
    """Check by sigstore that an identity signed, and say who; `root` has certificates, None: those it serves now."""
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
def keyless() -> Iterator[Callable[[bytes], Attestation]]:
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
