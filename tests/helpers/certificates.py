"""An authority and certificates of sites, for tests."""

from __future__ import annotations

import datetime

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from pmtl.secure_aggregation.identity import SITE_ROLE, Identity

DAY = datetime.timedelta(days=1)


def _name(name, role=None):
    parts = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
    if role is not None:
        parts.append(x509.NameAttribute(NameOID.UNSTRUCTURED_NAME, role))
    return x509.Name(parts)


def _pem(key):
    kinds = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, *kinds)


class Authority:
    """Signs certificates."""

    def __init__(self):
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.certificate = self._sign("authority", self.key, self.key)
        self.pem = self.certificate.public_bytes(serialization.Encoding.PEM)

    def _sign(self, name, key, issuer, days=(-1, 10), role=None):
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(_name(name, role))
            .issuer_name(_name("authority"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + days[0] * DAY)
            .not_valid_after(now + days[1] * DAY)
            .sign(issuer, hashes.SHA256())
        )

    def identity(self, site, name=None, days=(-1, 10), role=SITE_ROLE):
        """The identity of a site; `name` and `role` are those in its certificate."""
        key = ec.generate_private_key(ec.SECP256R1())
        signed = self._sign(name or site, key, self.key, days, role)
        pem = signed.public_bytes(serialization.Encoding.PEM)
        return Identity(site, pem, _pem(key), self.pem)
