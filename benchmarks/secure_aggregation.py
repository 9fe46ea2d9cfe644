"""What secure aggregation costs a site and the server in a round, beside a round without it.

    python benchmarks/secure_aggregation.py --json benchmarks/results/secure-aggregation.json

All messages of a round are made and read; training and the network are left out, which are the same
in both. Times are processor time, the least of 15 rounds. Without it, a site sends the sum of its
clients' uploads (`--summed`), and the server adds these and draws the noise. With it, a site makes
and signs a key, checks the keys of all, draws its share of the noise, adds masks and sends that,
and the server adds up. One site is measured; the others do the same at the same time.
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
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.x509.oid import NameOID

from pmtl.federation.messages import Message
from pmtl.privacy.grid import Grid
from pmtl.privacy.noise import system_source
from pmtl.privacy.plan import PrivacyPlan
from pmtl.privacy.release import Release, noise_of
from pmtl.secure_aggregation import shares
from pmtl.secure_aggregation.identity import SITE_ROLE, Identity
from pmtl.secure_aggregation.masks import mask
from pmtl.secure_aggregation.protocol import SiteMasking, unmasked

SIZES, SITES = (1_000, 10_000, 100_000, 1_000_000), (3, 10, 30)
DAY = datetime.timedelta(days=1)
_HEADER = {"run": "run", "round": 0, "attempt": "x" * 32}


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
    """The quickest of `repeats` rounds: others may be at work on this machine."""
    clients = 100 * len(identities)
    plan = PrivacyPlan(clients, clients, "full", 1.0, 0.01, 10, 1e-4)
    total = torch.arange(size) % 1000
    rows = [
        {**_without(plan, len(identities), total), **_with(plan, identities, total, str(attempt))}
        for attempt in range(repeats)
    ]
    return {name: float(min(row[name] for row in rows)) for name in rows[0]}


def _without(plan: PrivacyPlan, sites: int, total: torch.Tensor) -> dict[str, float]:
    """A round in which the server is trusted."""
    clock = Clock()
    sent = Message("uploads", _HEADER, {"uploads": total.numpy()}).to_bytes()
    found = {"site_s": clock.lap(), "sent_bytes": len(sent)}
    gate = Release(
        plan, np.zeros(plan.clients, dtype=np.int64), noise_of(plan, system_source, True)
    )
    shared, members = torch.zeros(1, len(total), dtype=torch.float64), plan.clients // sites
    tally = gate.open(0, shared)
    clock.lap()
    for site in range(sites):
        steps = torch.from_numpy(Message.from_bytes(sent).arrays["uploads"].copy())
        gate.add_sum(tally, np.arange(members) + site * members, steps)
    gate.publish(tally, shared)
    return {f"without_{name}": value for name, value in (found | {"server_s": clock.lap()}).items()}


def _with(
    plan: PrivacyPlan, identities: dict[str, Identity], total: torch.Tensor, attempt: str
) -> dict[str, float]:
    """A round with secure aggregation."""
    grid, colluders = Grid.of(plan), shares.default_colluders(len(identities))
    makers = {site: SiteMasking(identity) for site, identity in identities.items()}
    keys = {site: maker.key("run", 0, attempt) for site, maker in makers.items()}
    clock = Clock()
    makers["site-0"].key("run", 0, "other")  # What a key costs.
    key_s = clock.lap()
    keys["site-0"] = makers["site-0"].key("run", 0, f"{attempt} again")
    others = {site: maker for site, maker in makers.items() if site != "site-0"}
    keys |= {site: maker.key("run", 0, f"{attempt} again") for site, maker in others.items()}
    given = Message("masked", _HEADER | {"keys": [key.to_dict() for key in keys.values()]})
    content = given.to_bytes()
    clock.lap()
    listed = Message.from_bytes(content).header["keys"]
    asked = "run", 0, f"{attempt} again", listed, frozenset(keys)
    cohort = makers["site-0"].check(*asked, grid, colluders)
    check_s = clock.lap()
    sent = makers["site-0"].masked(cohort, total)
    masked_s = clock.lap()
    answer = Message("masked", _HEADER, {"masked": sent}).to_bytes()
    pack_s = clock.lap()
    shares.draw(system_source(0), len(total), cohort.share)
    share_s = clock.lap()
    mask("site-0", X25519PrivateKey.generate(), cohort.keys, cohort.attempt, len(total))
    masks_s = clock.lap()
    read = {site: Message.from_bytes(answer).arrays["masked"] for site in keys}
    assert unmasked(read, len(total)) is not None
    return {
        "with_server_s": clock.lap(),
        "with_site_s": key_s + check_s + masked_s + pack_s,
        "keys_s": key_s + check_s,
        "share_s": share_s,
        "masks_s": masks_s,
        "with_sent_bytes": len(answer) + len(Message("key", keys["site-0"].to_dict()).to_bytes()),
        "received_bytes": len(content),
    }


class Clock:
    """Seconds of processor time between laps: one thread, whatever else the machine does."""

    def __init__(self) -> None:
        self._last = time.process_time()

    def lap(self) -> float:
        """Seconds since the last lap."""
        now = time.process_time()
        passed, self._last = now - self._last, now
        return passed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeats", type=int, default=15)
    given = parser.parse_args()
    torch.set_num_threads(1)
    results = []
    for count in SITES:
        identities = _identities(count)
        measure(identities, SIZES[0], 1)  # Everything is imported and warm.
        for size in SIZES:
            row = {"sites": count, "numbers": size, **measure(identities, size, given.repeats)}
            results.append(row)
            print(" ".join(f"{k}={v:.4g}" for k, v in row.items()), flush=True)
    if given.json is not None:
        given.json.write_text(json.dumps({"rows": results}, indent=2) + "\n")


if __name__ == "__main__":
    main()
