"""The appendix' comparison with private FedProx: Fig. 3 with one more global method."""

from __future__ import annotations

from pmtl.experiments import fig3
from pmtl.experiments.result_cache import ResultCache
from pmtl.experiments.tables import Sheet


def run(lab: ResultCache) -> Sheet:
    """PMTL, private FedAvg and private FedProx."""
    methods = (*fig3.METHODS, ("private FedProx", "fedprox", "shared"))
    return fig3.against(lab, "fedprox", "PMTL against FedAvg and FedProx", methods)
