"""A sigstore in miniature, in this process: a certificate authority, a log of certificates, a log of signatures.

What it signs is checked by the real library, with this service's `trusted_root.json` in the place of sigstore's.
"""

from __future__ import annotations

import base64
import hashlib
import json
import struct
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from build.wheelhouse.attestation import PAYLOAD_TYPE, signed_bytes

#: Names of extensions: who vouched for the identity, and that a log has seen the certificate.
_ISSUER, _SEEN = x509.ObjectIdentifier("1.3.6.1.4.1.57264.1.1"), x509.ObjectIdentifier("1.3.6.1.4.1.11129.2.4.2")
_NAME = "log.example"


def _b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _der(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


def _key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _sign(key: ec.EllipticCurvePrivateKey, data: bytes) -> bytes:
    return key.sign(data, ec.ECDSA(hashes.SHA256()))


def _keyid(key: ec.EllipticCurvePrivateKey) -> bytes:
    return hashlib.sha256(_der(key)).digest()


@dataclass
class Service:
    """The service; each attribute is a key of one of its parts."""

    authority: ec.EllipticCurvePrivateKey = field(default_factory=_key)
    certificate_log: ec.EllipticCurvePrivateKey = field(default_factory=_key)
    log: ec.EllipticCurvePrivateKey = field(default_factory=_key)
    now: datetime = field(default_factory=lambda: datetime.now(timezone.utc).replace(microsecond=0))

    def __post_init__(self) -> None:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority.example")])
        made = self._certificate(name, name, self.authority, days=3650)
        made = made.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        made = made.add_extension(_usage(signs_certificates=True), critical=True)
        made = made.add_extension(
            x509.SubjectKeyIdentifier.from_public_key(self.authority.public_key()), critical=False
        )
        self.root = made.sign(self.authority, hashes.SHA256())

    def trusted_root(self) -> str:
        """Return the file that readers have got by another way."""
        long = {"start": (self.now - timedelta(days=1)).strftime("%Y-%m-%dT%H:%M:%SZ")}

        def log(key: ec.EllipticCurvePrivateKey) -> dict[str, Any]:
            public = {"rawBytes": _b64(_der(key)), "keyDetails": "PKIX_ECDSA_P256_SHA_256", "validFor": long}
            return {
                "baseUrl": f"https://{_NAME}",
                "hashAlgorithm": "SHA2_256",
                "publicKey": public,
                "logId": {"keyId": _b64(_keyid(key))},
            }

        chain = {"certificates": [{"rawBytes": _b64(self.root.public_bytes(Encoding.DER))}]}
        subject = {"organization": "example", "commonName": "authority.example"}
        authority = {"subject": subject, "uri": "https://ca.example", "certChain": chain, "validFor": long}
        whole = {
            "mediaType": "application/vnd.dev.sigstore.trustedroot+json;version=0.1",
            "tlogs": [log(self.log)],
            "certificateAuthorities": [authority],
            "ctlogs": [log(self.certificate_log)],
            "timestampAuthorities": [],
        }
        return json.dumps(whole)

    def bundle(self, statement: bytes, identity: str, issuer: str) -> str:
        """Return what sigstore's client makes of a statement, for a job with that identity."""
        key = _key()
        certificate = self._seen(key, identity, issuer)
        signature = _sign(key, signed_bytes(statement))
        envelope = {"payload": _b64(statement), "payloadType": PAYLOAD_TYPE, "signatures": [{"sig": _b64(signature)}]}
        material = {
            "certificate": {"rawBytes": _b64(certificate.public_bytes(Encoding.DER))},
            "tlogEntries": [self._logged(certificate, statement, signature, envelope)],
        }
        media = "application/vnd.dev.sigstore.bundle.v0.3+json"
        return json.dumps({"mediaType": media, "verificationMaterial": material, "dsseEnvelope": envelope})

    def _certificate(
        self, subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, days: int
    ) -> x509.CertificateBuilder:
        begin = self.now - timedelta(minutes=1)
        made = x509.CertificateBuilder(subject_name=subject, issuer_name=issuer, public_key=key.public_key())
        made = made.serial_number(x509.random_serial_number())
        return made.not_valid_before(begin).not_valid_after(begin + timedelta(days=days))

    def _seen(self, key: ec.EllipticCurvePrivateKey, identity: str, issuer: str) -> x509.Certificate:
        """Return a certificate for an identity, with the proof that the log of certificates has it (RFC 6962)."""
        made = self._certificate(x509.Name([]), self.root.subject, key, days=1)
        name = x509.UniformResourceIdentifier(identity)
        made = made.add_extension(x509.SubjectAlternativeName([name]), critical=True)
        made = made.add_extension(_usage(signs_certificates=False), critical=True)
        made = made.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CODE_SIGNING]), critical=False)
        made = made.add_extension(x509.UnrecognizedExtension(_ISSUER, issuer.encode()), critical=False)
        known = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.authority.public_key())
        made = made.add_extension(known, critical=False)
        told = made.sign(self.authority, hashes.SHA256()).tbs_certificate_bytes
        moment = int(self.now.timestamp() * 1000)
        entry = _keyid(self.authority) + len(told).to_bytes(3, "big") + told
        signature = _sign(self.certificate_log, struct.pack("!BBQH", 0, 0, moment, 1) + entry + b"\0\0")
        one = b"\0" + _keyid(self.certificate_log) + struct.pack("!QH", moment, 0)
        one += struct.pack("!BBH", 4, 3, len(signature)) + signature
        listed = struct.pack("!HH", len(one) + 2, len(one)) + one
        octets = b"\x04" + (bytes([len(listed)]) if len(listed) < 128 else bytes([0x81, len(listed)])) + listed
        return made.add_extension(x509.UnrecognizedExtension(_SEEN, octets), critical=False).sign(
            self.authority, hashes.SHA256()
        )

    def _logged(
        self, certificate: x509.Certificate, statement: bytes, signature: bytes, envelope: dict[str, Any]
    ) -> dict[str, Any]:
        """Return the entry of a log that has nothing else, with the log's promise and its signed size."""
        verifier = _b64(certificate.public_bytes(Encoding.PEM))
        spec = {
            "envelopeHash": _sha256(json.dumps(envelope).encode()),
            "payloadHash": _sha256(statement),
            "signatures": [{"signature": _b64(signature), "verifier": verifier}],
        }
        body = json.dumps({"apiVersion": "0.0.1", "kind": "dsse", "spec": spec}).encode()
        root = hashlib.sha256(b"\0" + body).digest()
        note = f"{_NAME}\n1\n{_b64(root)}\n"
        signed = _b64(_keyid(self.log)[:4] + _sign(self.log, note.encode()))
        moment = int(self.now.timestamp())
        promised = {"body": _b64(body), "integratedTime": moment, "logID": _keyid(self.log).hex(), "logIndex": 0}
        promise = _sign(self.log, json.dumps(promised, separators=(",", ":"), sort_keys=True).encode())
        return {
            "logIndex": "0",
            "logId": {"keyId": _b64(_keyid(self.log))},
            "kindVersion": {"kind": "dsse", "version": "0.0.1"},
            "integratedTime": str(moment),
            "inclusionPromise": {"signedEntryTimestamp": _b64(promise)},
            "inclusionProof": {
                "logIndex": "0",
                "rootHash": _b64(root),
                "treeSize": "1",
                "hashes": [],
                "checkpoint": {"envelope": f"{note}\n\N{EM DASH} {_NAME} {signed}\n"},
            },
            "canonicalizedBody": _b64(body),
        }


def _sha256(data: bytes) -> dict[str, str]:
    return {"algorithm": "sha256", "value": hashlib.sha256(data).hexdigest()}


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    names = "content_commitment key_encipherment data_encipherment key_agreement crl_sign encipher_only decipher_only"
    others = dict.fromkeys(names.split(), False)
    return x509.KeyUsage(digital_signature=not signs_certificates, key_cert_sign=signs_certificates, **others)
