"""What secure aggregation costs a site and the server in a round: seconds and bytes.

    python benchmarks/secure_aggregation.py --json benchmarks/results/secure-aggregation.json

One site's work is measured: signing a key, checking the keys of all others, drawing its share of
the noise, its masks. The server's work is the sum of all answers. Training and transport are not
included; beside it stands what a round without it sends and adds.
"""

from __future__ import annotations

import argparse
import datetime
import json
import time
from pathlib import Path

import numpy as np
import torch
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID

from pmtl.federation.messages import Message
from pmtl.privacy.grid import Grid
from pmtl.privacy.plan import PrivacyPlan
from pmtl.secure_aggregation import shares
from pmtl.secure_aggregation.identity import SITE_ROLE, Identity
from pmtl.secure_aggregation.protocol import SiteMasking, unmasked

SIZES, SITES = (1_000, 10_000, 100_000, 1_000_000), (3, 10, 30)
DAY = datetime.timedelta(days=1)


def _identities(count: int) -> dict[str, Identity]:
    """Sites with certificates like those of a start-up kit (RSA, 2048 bits)."""

    def name(text: str, role: str | None = None) -> x509.Name:
        parts = [x509.NameAttribute(NameOID.COMMON_NAME, text)]
        if role is not None:
            parts.append(x509.NameAttribute(NameOID.UNSTRUCTURED_NAME, role))
        return x509.Name(parts)

    def certificate(subject: str, key: rsa.RSAPrivateKey, role: str | None = None) -> bytes:
        now = datetime.datetime.now(datetime.UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(name(subject, role))
            .issuer_name(name("authority"))
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - DAY)
            .not_valid_after(now + DAY)
            .sign(authority, hashes.SHA256())
        )
        return made.public_bytes(serialization.Encoding.PEM)

    authority = rsa.generate_private_key(65537, 2048)
    root, found = certificate("authority", authority), {}
    for number in range(count):
        key, site = rsa.generate_private_key(65537, 2048), f"site-{number}"
        pem = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        found[site] = Identity(site, certificate(site, key, SITE_ROLE), pem, root)
    return found


def measure(identities: dict[str, Identity], size: int, repeats: int) -> dict[str, float]:
    """Medians over `repeats` attempts."""
    sites, colluders = len(identities), shares.default_colluders(len(identities))
    clients = 100 * sites
    grid = Grid.of(PrivacyPlan(clients, clients, "full", 1.0, 0.01, 10, 1e-4))
    total = torch.zeros(size, dtype=torch.int64)
    makers = {site: SiteMasking(identity) for site, identity in identities.items()}
    rows = []
    for attempt in range(repeats):
        keys = {site: maker.key("run", 0, str(attempt)) for site, maker in makers.items()}
        header = {"round": 0, "attempt": "x" * 32, "keys": [k.to_dict() for k in keys.values()]}
        began = time.perf_counter()
        checked = makers["site-0"].check("run", 0, str(attempt), header["keys"], frozenset(keys))
        keys_seconds = time.perf_counter() - began
        began = time.perf_counter()
        sent = makers["site-0"].masked(checked, total, grid, colluders)
        mask_seconds = time.perf_counter() - began
        began = time.perf_counter()
        noise = shares.draw(
            lambda n: np.random.default_rng(0).integers(0, 2**63, n, dtype=np.uint64),
            size, shares.scale(grid, sites, colluders),
        )  # fmt: skip
        share_seconds = time.perf_counter() - began
        assert len(noise) == size
        began = time.perf_counter()
        unmasked(dict.fromkeys(keys, sent), size)
        server_seconds = time.perf_counter() - began
        answer = Message("masked", {"round": 0, "attempt": "x" * 32}, {"masked": sent})
        plain = {"uploads": np.zeros(size, dtype=np.int64)}
        rows.append(
            {
                "check_keys_s": keys_seconds,
                "share_and_masks_s": mask_seconds,
                "share_alone_s": share_seconds,
                "server_sum_s": server_seconds,
                "bytes_sent": len(answer.to_bytes()),
                "bytes_of_keys": len(Message("masked", header).to_bytes()),
                "bytes_without": len(Message("uploads", {}, plain).to_bytes()),
            }
        )
    return {name: float(np.median([row[name] for row in rows])) for name in rows[0]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeats", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(1)
    results = []
    for count in SITES:
        identities = _identities(count)
        for size in SIZES:
            row = {"sites": count, "numbers": size, **measure(identities, size, given.repeats)}
            results.append(row)
            print(" ".join(f"{k}={v:.4g}" for k, v in row.items()), flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps({"rows": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
