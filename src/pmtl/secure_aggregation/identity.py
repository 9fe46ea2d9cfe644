"""Who a site is, and keys for one attempt that it has signed.

A site has a certificate of the federation's authority. For every attempt it makes a fresh X25519
key, signs it together with everything that the key is for, and deletes it after one use. Another
site accepts it only with a valid certificate of the same authority, in the name of that site.
"""

from __future__ import annotations

import datetime
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, padding, rsa
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.x509.oid import NameOID

from pmtl.errors import PmtlError, PublicError
from pmtl.jsontext import to_json

_PURPOSE = "pmtl secure aggregation 1"
#: The role in a site's certificate, in NVFLARE's field for it. The server has no role there, the
#: administrator has another one.
SITE_ROLE = "client"
_PSS = padding.PSS(mgf=padding.MGF1(hashes.SHA256()), salt_length=32)


@dataclass(frozen=True)
class Attempt:
    """What a key is for. Everything in it is signed, and goes into the masks."""

    federation: str  #: the digest of the authority's certificate
    run: str
    round: int
    attempt: str  #: a random text, new for each try
    agreement: str = ""  #: the digest of what the sites agreed on

    def to_bytes(self, *more: Any) -> bytes:
        """The attempt, and `more`, without ambiguity."""
        return to_json([_PURPOSE, *astuple(self), *more]).encode()


@dataclass(frozen=True)
class SignedKey:
    """A site's public key for one attempt."""

    site: str
    key: bytes  #: 32 bytes
    signature: bytes
    certificate: bytes  #: PEM

    def to_dict(self) -> dict[str, str]:
        return {
            "site": self.site,
            "key": self.key.hex(),
            "signature": self.signature.hex(),
            "certificate": self.certificate.decode("ascii", "replace"),
        }

    @classmethod
    def from_dict(cls, values: Any) -> SignedKey:
        """The inverse of `to_dict`; anything else is refused."""
        try:
            key, signature = bytes.fromhex(values["key"]), bytes.fromhex(values["signature"])
            made = cls(str(values["site"]), key, signature, values["certificate"].encode("ascii"))
        except (KeyError, TypeError, ValueError, AttributeError, UnicodeError) as error:
            raise PublicError("A key is refused: it cannot be read.") from error
        if len(made.key) != 32:
            raise PublicError("A key is refused: it does not have 32 bytes.")
        return made


class Identity:
    """A site's certificate with its private key, and the authority that it trusts."""

    def __init__(self, site: str, certificate: bytes, private_key: bytes, authority: bytes) -> None:
        """All are PEM: the site's certificate, its private key (without a password) and the
        certificate of the federation's authority."""
        self.site = site
        self._certificate = certificate
        try:
            self._key: Any = serialization.load_pem_private_key(private_key, None)
            self._authority = x509.load_pem_x509_certificate(authority)
        except (ValueError, TypeError) as error:
            raise PmtlError(
                f"The certificates of site {site!r} cannot be read: {error}."
            ) from error
        self.federation = self._authority.fingerprint(hashes.SHA256()).hex()

    @classmethod
    def read(cls, site: str, folder: Path) -> Identity:
        """The identity in a start-up kit's folder with client.crt, client.key and rootCA.pem."""
        try:
            names = "client.crt", "client.key", "rootCA.pem"
            certificate, key, authority = ((folder / name).read_bytes() for name in names)
            return cls(site, certificate, key, authority)
        except OSError as error:
            raise PmtlError(
                f"{error.filename} cannot be read: {error.strerror}. Secure aggregation needs the "
                "site's certificate, its key and the authority's certificate."
            ) from error

    def sign(self, attempt: Attempt, secret: X25519PrivateKey) -> SignedKey:
        """The public part of a fresh key, signed for one attempt."""
        public = secret.public_key().public_bytes_raw()
        message = attempt.to_bytes(self.site, public.hex())
        return SignedKey(self.site, public, self._signature(message), self._certificate)

    def check(self, attempt: Attempt, signed: SignedKey) -> None:
        """Refuse a key that was not made by this site of this federation, for this attempt."""
        refused = f"The key of site {signed.site!r} is refused: "
        try:
            certificate = x509.load_pem_x509_certificate(signed.certificate)
            certificate.verify_directly_issued_by(self._authority)
        except (ValueError, TypeError, InvalidSignature) as error:
            raise PublicError(f"{refused}its certificate is not of this federation.") from error
        names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        if [name.value for name in names] != [signed.site]:
            raise PublicError(f"{refused}its certificate is in another name.")
        roles = certificate.subject.get_attributes_for_oid(NameOID.UNSTRUCTURED_NAME)
        if [role.value for role in roles] != [SITE_ROLE]:
            raise PublicError(f"{refused}its certificate is not that of a site.")
        now = datetime.datetime.now(datetime.UTC)
        if not certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc:
            raise PublicError(f"{refused}its certificate is not valid now.")
        message = attempt.to_bytes(signed.site, signed.key.hex())
        try:
            _verify(certificate.public_key(), signed.signature, message)
        except InvalidSignature as error:
            raise PublicError(
                f"{refused}it was not signed by this site for this attempt."
            ) from error

    def _signature(self, message: bytes) -> bytes:
        key = self._key
        if isinstance(key, rsa.RSAPrivateKey):
            return key.sign(message, _PSS, hashes.SHA256())
        if isinstance(key, ec.EllipticCurvePrivateKey):
            return key.sign(message, ec.ECDSA(hashes.SHA256()))
        if isinstance(key, ed25519.Ed25519PrivateKey):
            return key.sign(message)
        raise PmtlError(f"The key of site {self.site!r} is of a kind that is not known.")


def _verify(key: Any, signature: bytes, message: bytes) -> None:
    if isinstance(key, rsa.RSAPublicKey):
        key.verify(signature, message, _PSS, hashes.SHA256())
    elif isinstance(key, ec.EllipticCurvePublicKey):
        key.verify(signature, message, ec.ECDSA(hashes.SHA256()))
    elif isinstance(key, ed25519.Ed25519PublicKey):
        key.verify(signature, message)
    else:
        raise InvalidSignature
