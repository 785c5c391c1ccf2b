"""The signer whom a reader believes: a key, an identity that sigstore has seen, or anybody."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from build.errors import ClaimError, UsageError
from build.wheelhouse import keyless, signing
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
        return f"key {signing.public_key(Path(self.key)).keyid}" if self.key else self.identity

    def vouches(self, signed: Attestation) -> str:
        """Check a signature, and return who signed, in words.

        Raises:
            ClaimError: it is not that of the signer, or there is none.
            UsageError: it cannot be checked here.
        """
        if signed.publisher is Publisher.SIGSTORE:
            if self.identity:
                root = Path(self.trusted_root) if self.trusted_root else None
                return keyless.vouched(signed, self.identity, self.issuer, root)
            if not self.key:
                return "by sigstore, NOT CHECKED: `--identity` names who must have signed"
        elif signed.publisher is Publisher.KEY and not self.identity:
            key = signing.public_key(Path(self.key)) if self.key else _enclosed(signed)
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
        signing.public_key(key)
    if trusted_root and not trusted_root.is_file():
        raise UsageError(f"--trusted-root {trusted_root}: no such file", remedy="name sigstore's trusted_root.json")
    return Signer(
        str(key.resolve()) if key else "", identity, issuer, str(trusted_root.resolve()) if trusted_root else ""
    )


def _enclosed(signed: Attestation) -> signing.PublicKey:
    try:
        return signing.parse_public(signed.public.encode())
    except ValueError:
        raise UsageError(f"the public key {signed.keyid} is not at hand", remedy="name it: --key FILE") from None
