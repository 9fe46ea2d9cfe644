"""Clustered PMTL: mean-regularisation inside fixed clusters.

The paper's remark on Corollary 2 (after Evgeniou, Micchelli & Pontil, JMLR 2005): Algorithm 1 runs
inside each cluster, and the billboard has one mean per cluster. A client writes only to its own
cluster, so replacing its data changes one block: the guarantee is the same as for a single block.
The clusters must be public: chosen without looking at the clients' data.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from pmtl.algorithms.pmtl import PMTL
from pmtl.errors import PmtlError


@dataclass(frozen=True)
class ClusteredPMTL(PMTL):
    """PMTL with one mean per cluster.

    `clusters` maps client to cluster: a mapping, or a file (JSON object, or CSV with the columns
    client and cluster).
    """

    name: ClassVar[str] = "clustered"
    relations: ClassVar[str | None] = "The clusters"

    #: Not in `repr`, which decides the noise: equal clusters from another file are the same run.
    clusters: Mapping[str, str] | str = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.clusters, str):  # Absolute: a run can be resumed from any folder.
            object.__setattr__(self, "clusters", str(Path(self.clusters).absolute()))

    def blocks(self, clients: tuple[str, ...]) -> NDArray[np.int64]:
        cluster_of = self.clusters if isinstance(self.clusters, Mapping) else _read(self.clusters)
        if not cluster_of:
            raise PmtlError(
                "Clustered PMTL needs the cluster of each client: clustered:clusters=FILE, a JSON "
                "object that maps client to cluster, or a CSV file with the columns client and "
                "cluster."
            )
        missing = [client for client in clients if client not in cluster_of]
        if missing:
            raise PmtlError(
                f"{len(missing)} of {len(clients)} clients have no cluster, the first is "
                f"{missing[0]!r}: name all of them in the mapping or file that "
                "clustered:clusters=FILE gives."
            )
        names = [str(cluster_of[client]) for client in clients]
        return np.unique(names, return_inverse=True)[1].astype(np.int64)


def _read(path: str) -> Mapping[str, str]:
    try:
        text = Path(path).read_text(encoding="utf-8")
        if path.endswith(".json"):
            pairs: Any = json.loads(text).items()
        else:
            rows = csv.DictReader(text.splitlines())
            pairs = [(row["client"], row["cluster"]) for row in rows]
        clusters: dict[str, str] = {}
        for client, cluster in pairs:
            if not isinstance(cluster, str | int):
                raise ValueError(f"{client!r} has no cluster but {cluster!r}")
            if clusters.setdefault(client, str(cluster)) != str(cluster):
                raise ValueError(f"{client!r} is in two clusters")
        return clusters
    except (OSError, ValueError, KeyError, AttributeError, RecursionError, csv.Error) as error:
        raise PmtlError(
            f"The clusters in {path!r} cannot be read ({error}): give a JSON object that maps "
            "client to cluster, or a CSV file with the columns client and cluster."
        ) from error
