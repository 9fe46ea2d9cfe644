"""Clustered PMTL against plain PMTL on data with true clusters, and relationship matrices.

The synthetic federation of this setting has four clusters of clients with nothing in common. Plain
PMTL pulls all clients to one mean. Clustered PMTL has a mean for each cluster, with the same ε and
four times the noise. `both` is in between, with Ω = ½Ω_mean + ½Ω_clusters. `wrong clusters` are
drawn at random.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pmtl.algorithms import Algorithm, ClusteredPMTL, RelatedPMTL
from pmtl.errors import PmtlError
from pmtl.experiments.results import Results
from pmtl.experiments.sheet import Sheet
from pmtl.spec import parse_spec


def clusters(results: Results) -> Sheet:
    """Test accuracy for every ε."""
    families = define(results)
    sheet = Sheet(
        "clusters",
        f"Clusters: PMTL with other means, test accuracy at the ε that holds; {results.data.m} "
        "clients in clusters with nothing in common.",
        ("ε", "local", *families),
    )
    alone = results.local()
    for epsilon in (*results.setting.epsilons, float("inf")):
        row: dict[str, object] = {"ε": epsilon, "local": alone}
        for family, names in families.items():
            cells = results.grid(family, epsilon != float("inf"), names)
            row[family] = results.score(cells, epsilon, "ours", "personal")
        sheet.add(**row)
    return sheet


def define(results: Results) -> dict[str, list[str]]:
    """The methods, and the name of each in cells, for every λ."""
    clients = results.data.clients
    true = true_clusters(results)
    wrong = np.random.default_rng(0).permutation(true)
    families: dict[str, list[str]] = {}
    for lam in results.setting.lams:
        methods: dict[str, Algorithm | None] = {
            "PMTL": None,
            "clustered": ClusteredPMTL(lam=lam, clusters=_named(clients, true)),
            "both": RelatedPMTL(lam=lam, omega=0.5 * _centring(0 * true) + 0.5 * _centring(true)),
            "wrong clusters": ClusteredPMTL(lam=lam, clusters=_named(clients, wrong)),
        }
        for name, algorithm in methods.items():
            called = f"pmtl:lam={lam:g}"
            if algorithm is not None:
                called = results.define(f"{name.replace(' ', '-')}-lam={lam:g}", algorithm)
            families.setdefault(name, []).append(called)
    return families


def true_clusters(results: Results) -> NDArray[np.int64]:
    """The generator's clusters: client k is in cluster k mod clusters."""
    _, options = parse_spec(results.data.source or "")
    if "clusters" not in options:
        raise PmtlError(
            "The experiment clusters needs data with known clusters: use --on clusters, or --data "
            "synthetic:clusters=4,…."
        )
    return np.array([int(client) for client in results.data.clients]) % int(options["clusters"])


def _named(clients: tuple[str, ...], clusters: NDArray[np.int64]) -> dict[str, str]:
    return dict(zip(clients, map(str, clusters.tolist()), strict=True))


def _centring(clusters: NDArray[np.int64]) -> NDArray[np.float64]:
    """Ω of clusters: block by block I − 11ᵀ/m_b."""
    one = np.equal.outer(clusters, clusters)
    return np.asarray(np.eye(len(clusters)) - one / one.sum(axis=1))
